"""The pages of the repository: links lead somewhere, pipelines in them are valid, Python in them compiles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.spec.loading import load
from tools.style import NOT_OURS, TEXT_FOLDERS

REPOSITORY = Path(__file__).parents[2]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|^\[[^\]]+\]: (?P<reference>\S+)", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_OUTSIDE = re.compile(r"[a-z]+:")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def pages() -> list[Path]:
    """The project's Markdown pages, whether git is there to list them or not."""
    found = list(REPOSITORY.glob("*.md"))
    for folder in TEXT_FOLDERS:
        for page in (REPOSITORY / folder).rglob("*.md"):
            inner = page.relative_to(REPOSITORY).parts[:-1]
            if not any(part in NOT_OURS or part.startswith(".") for part in inner[1:]):
                found.append(page)
    return sorted(found)


def blocks_of(page: Path, text: str) -> Iterator[Block]:
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        inner = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        yield Block(page, text.count("\n", 0, match.start()) + 1, match["language"], inner)


def links_of(text: str) -> Iterator[str]:
    """Targets of the links in the prose."""
    for match in _LINK.finditer(_CODE.sub("", _FENCE.sub("", text))):
        yield match["target"] or match["reference"]


def anchors_of(text: str) -> set[str]:
    """What the headings of a page can be linked to by."""
    anchors: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        anchor = (
            re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", "-")
        )
        number = 0
        while (anchor if not number else f"{anchor}-{number}") in anchors:
            number += 1
        anchors.add(anchor if not number else f"{anchor}-{number}")
    return anchors


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in links_of(text):
        if _OUTSIDE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            broken.append(f"{page}: {link}: there is no such file")
        elif anchor and target.suffix == ".md":
            shown = text if target == page else target.read_text(encoding="utf-8")
            if anchor not in anchors_of(shown):
                broken.append(f"{page}: {link}: there is no such heading")
    return broken


PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks_of(page, page.read_text(encoding="utf-8"))]
PIPELINES = [
    block for block in BLOCKS if block.language == "yaml" and re.search(r"^kind: Pipeline$", block.text, re.MULTILINE)
]
PROGRAMS = [block for block in BLOCKS if block.language == "python"]


def test_there_are_pages_to_check() -> None:
    assert REPOSITORY / "README.md" in PAGES
    assert PIPELINES, "no page shows a pipeline, or the blocks are not found"
    assert PROGRAMS, "no page shows a function, or the blocks are not found"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = broken_links(page, page.read_text(encoding="utf-8"))
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.parametrize("block", PIPELINES, ids=str)
def test_pipelines_are_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(block.text, encoding="utf-8")
    load(file)


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec", dont_inherit=True)


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# Two words\n\n## `code` and more\n\n## Same\n\n## Same\n")
    text = (
        "# Here\n[a](other.md) [b](other.md#two-words) [c](other.md#code-and-more) [d](#here) [e](https://example.org)\n"
        "[f](other.md#same-1) ![picture](none.png)\n```\n[in code](none.md)\n```\nand `[in code](none.md)`\n"
    )
    page.write_text(text)
    assert broken_links(page, text) == []
    for wrong in ("[x](none.md)", "[x](other.md#none)", "[x](#none)", "[x](other.md#same-2)", "[x]: none.md"):
        assert len(broken_links(page, f"{text}\n{wrong}\n")) == 1, wrong


def test_every_line_of_the_page_on_security_names_tests_that_are_there() -> None:
    page = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
    tables = [table for table in page.split("\n\n") if table.splitlines()[0].endswith("| held by |")]
    assert len(tables) == 4
    for line in [line for table in tables for line in table.splitlines()[2:]]:
        held_by = line.rstrip(" |").rpartition(" | ")[2]
        names = re.findall(r"`([\w/]+\.py)`", held_by)
        assert names or held_by in ("the command itself", "trusted"), line
        assert not [name for name in names if not (REPOSITORY / "tests" / name).is_file()], line


TOUR = (REPOSITORY / "docs" / "tour.md").read_text(encoding="utf-8")
STOPS = re.findall(r"`([\w.]+)`\s+(?:in|of)\s+\[[^]]+\]\(\.\./([\w/.]+\.py)\)", TOUR)


@pytest.mark.parametrize(("name", "path"), STOPS)
def test_what_the_tour_shows_is_there(name: str, path: str) -> None:
    found: ast.AST | None = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        body = getattr(found, "body", [])
        found = next((node for node in body if getattr(node, "name", None) == part), None)
        assert found is not None, f"{path} has no {name}"


def test_each_stop_of_the_tour_names_a_function() -> None:
    links = re.findall(r"\(\.\./[\w/.]+\.py\)", TOUR)
    # The test of the crash points, and the pair of a protocol and its page, are links without a function.
    assert len(STOPS) >= len(links) - 3
    steps = re.findall(r"^\d+\. ", TOUR, re.M)
    assert len(steps) == 16


def test_each_everyday_change_names_three_code_files_at_most() -> None:
    page = (REPOSITORY / "docs" / "where-to-change.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| to change")]
    assert len(rows) == 10
    for row in rows:
        assert len(re.findall(r"\(\.\./[\w/.]+\.py\)", row)) <= 3, row
