"""Error codes: each error carries one that fits its class, each is used, and the pages are made from them."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream import codes, errors
from millstream.errors import MillstreamError
from millstream_runner.cli.main import main
from tools import errors_reference, style

EXIT_CODES = {
    name: kind.exit_code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, MillstreamError)
}
"""Of our errors, by the name of the class."""


@cache
def nodes() -> tuple[tuple[Path, ast.ClassDef | ast.Call | ast.Attribute], ...]:
    """What these tests look at of the product, but for the SDK, which is a distribution of its own. To parse it takes
    seconds, which every process that collects tests would need."""
    modules = [
        path
        for path in style.modules()
        if path.relative_to(style.REPOSITORY).parts[0] in ("millstream", "services", "connectors")
        and "udf_sdk" not in path.parts
        and path.parent.name != "codes"
        and path != style.REPOSITORY / "millstream" / "errors.py"
    ]
    return tuple(
        (path.relative_to(style.REPOSITORY), node)
        for path in modules
        for node in style.nodes_below(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.Call | ast.Attribute)
    )


class Raised(NamedTuple):
    """A place where one of our errors is made."""

    where: str
    error: str
    """Name of the class in `millstream.errors`."""
    code: ast.expr | None
    """What it is made with first."""


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def classes() -> dict[str, ast.ClassDef]:
    """Classes of ours that are defined elsewhere."""
    defined = {node.name: node for _, node in nodes() if isinstance(node, ast.ClassDef) and node.bases}
    found = {name: node for name, node in defined.items() if name_of(node.bases[0]) in EXIT_CODES}
    while more := {
        name: node for name, node in defined.items() if name not in found and name_of(node.bases[0]) in found
    }:
        found |= more
    return found


def of_errors(name: str, known: dict[str, ast.ClassDef]) -> str:
    """The class in `millstream.errors` that one elsewhere is of."""
    while name in known:
        name = name_of(known[name].bases[0])
    return name


def says_its_own(name: str, known: dict[str, ast.ClassDef]) -> bool:
    """Whether a class has its code from its own constructor, or from that of a class between it and ours."""
    while name in known:
        if any(isinstance(part, ast.FunctionDef) and part.name == "__init__" for part in known[name].body):
            return True
        name = name_of(known[name].bases[0])
    return False


def all_raised() -> list[Raised]:
    """A class that says its code itself is one place, wherever it is made."""
    known = classes()
    found = []
    for path, node in nodes():
        if isinstance(node, ast.ClassDef) and node.name in known and name_of(node.bases[0]) in EXIT_CODES:
            calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
            calls = [call for call in calls if ast.unparse(call.func) == "super().__init__"]
        elif isinstance(node, ast.Call) and (
            name_of(node.func) in EXIT_CODES
            or (name_of(node.func) in known and not says_its_own(name_of(node.func), known))
        ):
            calls = [node]
        else:
            continue
        name = node.name if isinstance(node, ast.ClassDef) else name_of(node.func)
        found += [
            Raised(f"{path}:{call.lineno}", of_errors(name, known), call.args[0] if call.args else None)
            for call in calls
        ]
    return found


def named(node: ast.expr | None) -> str | None:
    """The code that an expression names: `codes.NAME`."""
    if isinstance(node, ast.Attribute) and name_of(node.value) == "codes":
        return node.attr
    return None


@pytest.mark.slow
def test_every_error_has_a_code_of_its_class() -> None:
    raised_anywhere = all_raised()
    assert len(raised_anywhere) > 300, "the places are not found"
    wrong = []
    for raised in raised_anywhere:
        name = named(raised.code)
        if name is None:
            # One that is handed on, from where it was chosen.
            if raised.code is None or not name_of(raised.code).endswith("code"):
                wrong.append(f"{raised.where}: {raised.error} without a code")
        elif name not in codes.NAMED:
            wrong.append(f"{raised.where}: there is no code {name}")
        elif codes.NAMED[name].exit_code != EXIT_CODES[raised.error]:
            wrong.append(f"{raised.where}: {raised.error} has another exit code than {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_code_is_used() -> None:
    used = {named(node) for _, node in nodes() if isinstance(node, ast.Attribute)}
    assert sorted(set(codes.NAMED) - used) == []


def test_codes_are_told_apart_and_say_something() -> None:
    assert len(codes.CODES) == len(codes.NAMED), "two codes have one number"
    assert sum(map(len, codes.families().values())) == len(codes.CODES)
    titles = Counter(code.title for code in codes.CODES.values())
    assert [title for title, count in titles.items() if count > 1] == []
    for code in codes.CODES.values():
        assert not code.title.endswith("."), code
        for text in (code.happened, code.data, code.do):
            assert text.endswith("."), f"{code}: {text}"
            assert not re.search(r"\s{2}|\n", text), f"{code}: {text}"


@pytest.mark.slow
def test_no_page_names_a_code_that_is_not_there() -> None:
    pages = [path for path in style.texts() if path.suffix in (".md", ".py")]
    for page in pages:
        for number in re.findall(r"\bMS-([2-7]\d{3})\b", page.read_text(encoding="utf-8")):
            # Tests of what is not a code use the last number of a class.
            assert int(number) in codes.CODES or number.endswith("999"), f"{page}: MS-{number}"


def test_the_pages_are_made_from_the_catalogue() -> None:
    assert errors_reference.main(["--check"]) == 0


def test_a_stale_page_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(errors_reference, "ROOT", tmp_path)
    assert errors_reference.main(["--check"]) == 1
    assert errors_reference.main([]) == 0
    assert errors_reference.main(["--check"]) == 0
    page = tmp_path / "docs" / "troubleshooting.md"
    page.write_text(page.read_text() + "more\n")
    assert errors_reference.main(["--check"]) == 1


@pytest.mark.parametrize("text", ["MS-4010", "ms-4010", "4010", " Ms-4010 "])
def test_a_code_is_explained_however_it_is_written(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", text]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("MS-4010: The data directory is in use (exit code 4)\n")
    for heading in ("What happened", "What it means for the data", "What to do"):
        assert f"\n{heading}\n  " in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {code}  {code.title}\n" in printed for code in codes.CODES.values())
    assert main(["explain", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["codes"]
    assert [entry["code"] for entry in listed] == [code.id for code in codes.CODES.values()]
    assert main(["explain", "4010", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == next(entry for entry in listed if entry["code"] == "MS-4010")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MS-4011x", "MS-4011"),
        ("disk", "MS-4001"),
        ("MS-1", "`millstream explain` lists them all"),
        ("²", "lists them"),
        ("list", "lists them"),
    ],
)
def test_what_is_no_code_leads_to_one(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", text]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert codes.NO_SUCH_CODE.id in printed.err
    assert printed.out == ""
