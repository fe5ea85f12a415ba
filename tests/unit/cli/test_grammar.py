"""The grammar of the command line: examples, widths, one way to JSON, and faults that say what was meant."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.printable import printable_output
from millstream_runner.cli.arguments import parser
from millstream_runner.cli.examples import EXAMPLES, examples_of
from millstream_runner.cli.main import main
from millstream_runner.cli.parsing import WIDTH_MAX, Parser

PAGE = (Path(__file__).parents[3] / "docs/cli.md").read_text(encoding="utf-8")
ALWAYS_JSON = {("compile",), ("schema",)}
"""Their output is JSON without being asked for."""
NO_FACTS = {("completion",)}
"""What a shell reads."""


def parsers(top: Parser) -> Iterator[Parser]:
    yield top
    below = top.commands
    if below is not None:
        for choice in below.choices.values():
            yield from parsers(choice)


ALL = {one.path: one for one in parsers(parser())}
LEAVES = {path: one for path, one in ALL.items() if one.commands is None}


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_help_has_examples_and_fits_80_columns(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "\nexamples:\n" in text, f"`millstream {' '.join(path)} --help` has no example: add some to cli/examples.py"
    assert [line for line in text.splitlines() if len(line) > WIDTH_MAX] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_examples_are_right(path: tuple[str, ...]) -> None:
    for example in examples_of(path):
        words = shlex.split(re.sub(r"^eval \"\$\((.*)\)\"$", r"\1", example.command).partition(" > ")[0])
        found = parser().parse_args(words[1:])
        assert words[: len(path) + 1] == ["millstream", *path], example.command
        assert found.command == path[0]


def test_examples_are_of_commands_there_are() -> None:
    assert set(EXAMPLES) <= set(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_facts_come_as_json_in_one_way(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    forms = [action for action in command._actions if set(action.option_strings) & {"-o", "--output", "--json"}]
    if path in ALWAYS_JSON | NO_FACTS:
        assert forms == []
        return
    (form,) = forms
    assert form.option_strings == ["-o", "--output"]
    assert form.choices == ("text", "json")
    assert form.dest == "json"
    needed = [word for action in command._actions if action.required for word in _given(action)]
    assert parser().parse_args([*path, *needed, "-o", "json"]).json is True
    assert parser().parse_args([*path, *needed]).json is False


def _given(action: argparse.Action) -> list[str]:
    value = str(next(iter(action.choices))) if action.choices else "1"
    return [*action.option_strings[:1], value]


def test_the_page_says_what_each_command_prints_as_json() -> None:
    table = PAGE.partition("## JSON output")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `([^`]+)` \|", table, re.M))
    printing = {path for path in LEAVES if path not in ALWAYS_JSON | NO_FACTS}
    silent = [path for path in printing if " ".join(path) not in rows and path[0] not in rows]
    assert not silent, f"docs/cli.md, JSON output, has no row for {silent}"
    assert {row.split(" --")[0].split()[0] for row in rows} <= {path[0] for path in printing}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rn pipeline.yaml", "there is no command 'rn'; did you mean run?"),
        ("stauts", "there is no command 'stauts'; did you mean status?"),
        ("start", "there is no command 'start'; did you mean run?"),
        ("lint p.yaml", "there is no command 'lint'; did you mean validate?"),
        ("help", "there is no command 'help'; did you mean --help?"),
        ("deadletters lsit", "there is no command 'lsit'; did you mean list?"),
        ("run --qiet p.yaml", "there is no option --qiet; did you mean --quiet?"),
        ("run --qiet", "there is no option --qiet; did you mean --quiet?"),
        ("status --jsn", "there is no option --jsn"),
        ("init x --template mpa", "--template cannot be 'mpa'; did you mean map?"),
        ("status -o yaml", "--output cannot be 'yaml'; known are: text, json"),
        ("peek e --partition one", "--partition cannot be 'one'; it must be a whole number"),
        ("bench latency --seconds soon", "--seconds cannot be 'soon'; it must be a number"),
        ("bench --records 5 map", "put --records after the command: millstream bench map --records"),
        ("logs --since", "--since needs a value: --since WHEN"),
        ("peek", "EDGE is missing"),
        ("broker config p.yaml", "--to is missing"),
        ("completion", "shell is missing: one of bash, zsh, fish"),
        ("status --pipeline a --data-dir b", "--data-dir and --pipeline exclude each other: give one of them"),
        ("status a.yaml b.yaml", "unexpected argument 'b.yaml'"),
        ("logs -x", "unknown option -x; the options are: -h, -f, -o"),
    ],
)
def test_a_fault_says_what_was_meant(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    what, where = err.splitlines()
    assert out == ""
    assert "error[MS-2121]: " in what
    assert said in what
    assert re.fullmatch(r"see `millstream[a-z ]* --help` for options and examples", where)
    assert "usage:" not in err


@pytest.mark.parametrize("words", [[], ["deadletters"], ["bench"]])
def test_without_a_command_there_is_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "examples:" in err
    assert "needs one of the commands above" in err


def test_help_has_every_command_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "\nmore:" not in text, "cli/arguments.py, _GROUPS: say where the new command belongs"
    assert [path for path in ALL if len(path) == 1 and f"\n  {path[0]} " not in text] == []


def typed_on(page: Path) -> Iterator[tuple[str, str]]:
    """Command and option of each command line on a page, in the prose, in blocks and at prompts."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"`(millstream [^`]+)`", text) + re.findall(r"^(?:    |\$ )?(millstream .+)$", text, re.M)
    for line in lines:
        words = re.split(r"[\s;|&]+", line.partition("#")[0])
        for word in words[2:]:
            if re.fullmatch(r"--?[a-z][a-z-]*(?:=.*)?", word):
                yield words[1], word.partition("=")[0]


def test_pages_name_no_option_there_is_not() -> None:
    commands = {path[0]: set[str]() for path in ALL if path}
    for path, command in ALL.items():
        for action in command._actions if path else ():
            commands[path[0]].update(action.option_strings)
    root = Path(__file__).parents[3]
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    history = {root / "CHANGELOG.md", *(root / "docs" / "decisions").glob("*.md")}
    wrong = [
        f"{page.relative_to(root)}: millstream {name} {option}"
        for page in pages
        if page not in history
        for name, option in typed_on(page)
        if name in commands and option not in commands[name]
    ]
    assert wrong == []


def test_options_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--pipe", "x"]) == 2
    assert "there is no option --pipe; did you mean --pipeline?" in capsys.readouterr().err


def test_debug_may_stand_anywhere() -> None:
    for words in (["--debug", "bench", "map"], ["bench", "--debug", "map"], ["bench", "map", "--debug"]):
        assert parser().parse_args(words).debug is True
    assert parser().parse_args(["bench", "map"]).debug is False


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_one_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert re.fullmatch(r"millstream \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_what_a_person_typed_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    with printable_output():
        assert main(["status", "-o", "\x1b[31mred"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "validate", "graph", "compile", "repair", "watermark"])
def test_a_pipeline_that_is_not_named_is_the_one_of_the_directory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command]) == 2
    err = capsys.readouterr().err
    assert "pipeline.yaml: there is no such file" in err
    assert "millstream init" in err
    (tmp_path / "pipeline.yaml").write_text("kind: Pipelin\n")
    assert main([command]) == 2
    assert "pipeline.yaml:1" in "".join(capsys.readouterr())
