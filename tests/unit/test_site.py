"""The documentation site: it is built strictly, whole and offline, and shows what the pages mean."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import millstream_udf
from millstream import codes
from millstream_runner.cli.arguments import parser
from tools.follow import blocks_of
from tools.glossary_links import Term, linked, terms_of

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
LIMIT_S = 280
"""Of the build, which takes 7 s of a processor, where others have the processors."""
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 20)]

_LOADED = re.compile(r"<(?:script|img|iframe|source|video)\b[^>]*?\bsrc=[\"']?([^\"'\s>]+)|<link\b([^>]*)>")
_HREF = re.compile(r"\bhref=[\"']?([^\"'\s>]+)")
_ANCHOR = re.compile(r"<a\b[^>]*?\bhref=[\"']?([^\"'\s>]+)")
_ID = re.compile(r"\bid=[\"']?([^\"'\s>]+)")
_FROM_CSS = re.compile(r"@import|url\([\"']?((?:https?:)?//[^)]*)")
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_MEANT = re.compile(r"^(?:[-*] |1\. |\|.*\|$|#+ |```)", re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert built.returncode == 0, built.stderr
    return directory


def pages(site: Path) -> Iterator[tuple[str, str]]:
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html":
            yield page.relative_to(site).as_posix(), page.read_text(encoding="utf-8")


def of_page(text: str) -> str:
    """What the page itself says, without navigation."""
    return text.partition("<article")[2].partition("</article")[0]


def loaded(text: str) -> list[str]:
    """What a browser would fetch for a page from elsewhere."""
    found = []
    for source, link in _LOADED.findall(text):
        target = source or (match[1] if "canonical" not in link and (match := _HREF.search(link)) else "")
        if re.match(r"(?:https?:)?//", target):
            found.append(target)
    return found


def misread(text: str) -> list[str]:
    """Paragraphs that were meant as a list, a table, a heading or a block."""
    prose = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    return [html.unescape(one)[:120] for one in _PARAGRAPH.findall(prose) if _MEANT.search(one)]


@pytest.mark.sweep
def test_every_page_is_there(site: Path) -> None:
    built = {name for name, _ in pages(site)}
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix()
        assert re.sub(r"README\.html$", "index.html", name) in built, name
    assert {"repository/ARCHITECTURE.html", "repository/deploy/index.html"} <= built


def test_nothing_comes_from_the_network(site: Path) -> None:
    for name, text in pages(site):
        assert not loaded(text), name
        assert 'class="mermaid"' not in text, f"{name}: Mermaid would be loaded from elsewhere; draw it as text or SVG"
    for sheet in site.rglob("*.css"):
        assert not _FROM_CSS.findall(sheet.read_text(encoding="utf-8")), sheet


def test_links_lead_to_pages_headings_and_files(site: Path) -> None:
    texts = dict(pages(site))
    headings = {name: set(_ID.findall(text)) for name, text in texts.items()}
    broken = []
    for name, text in texts.items():
        for link in set(_ANCHOR.findall(text)):
            target, _, anchor = unquote(html.unescape(link)).partition("#")
            if re.match(r"[a-z]+:|//", target):
                continue
            path = (site / name).parent / target if target else site / name
            path = path / "index.html" if path.is_dir() else path
            if not path.exists():
                broken.append(f"{name}: {link}: there is no such file")
            elif anchor and path.suffix == ".html" and not anchor.startswith("__"):
                there = headings.get(path.resolve().relative_to(site.resolve()).as_posix(), set())
                if anchor not in there:
                    broken.append(f"{name}: {link}: there is no such heading")
    assert not broken, "\n".join(broken)


def test_lists_and_tables_are_shown_as_such(site: Path) -> None:
    found = [f"{name}: {paragraph}" for name, text in pages(site) for paragraph in misread(of_page(text))]
    assert not found, "put an empty line before each of these:\n" + "\n".join(found)


def test_the_search_finds_codes_fields_and_commands(site: Path) -> None:
    # As a script, which a browser reads from a file, too.
    (index,) = site.glob("search/search_index.js")
    entries = json.loads(index.read_text(encoding="utf-8").partition("=")[2].rstrip(";\n"))["docs"]
    said = " ".join(f"{entry['title']} {entry['text']}" for entry in entries)
    for word in ("MS-4010", "maxDelay", "millstream deadletters replay", "DeadLetter", "run_windows"):
        assert word in said, word
    assert {str(code) for code in codes.CODES.values()} <= set(re.findall(r"MS-\d+", said))


def test_every_command_and_name_is_in_the_reference(site: Path) -> None:
    texts = dict(pages(site))
    commands = re.findall(r"<h2[^>]*>.*?millstream (\w+)", texts["reference/commands.html"])
    (choices,) = [action.choices for action in parser()._actions if action.dest == "command"]
    assert commands == list(choices or ())
    named = {f"millstream_udf.{name}" for name in millstream_udf.__all__ if not name.startswith("_")}
    assert named <= set(_ID.findall(texts["reference/sdk.html"]))


def test_first_mentions_lead_to_the_glossary(site: Path) -> None:
    text = (site / "guarantees.html").read_text(encoding="utf-8")
    assert len(re.findall(r'class="term" href="glossary.html#term-lane"', text)) == 1
    assert 'class="term" href="../glossary.html#' in (site / "tutorial" / "4-windows.html").read_text(encoding="utf-8")
    terms = {term.word for term in terms_of((DOCS / "glossary.md").read_text(encoding="utf-8"))}
    assert {"lane", "UDF", "OT store"} <= terms


def test_a_term_is_linked_once_and_only_in_prose() -> None:
    terms = [Term("lane", "one <input>"), Term("late record", "too late"), Term("record", "everyday")]
    page = "<h2>Lanes</h2><p><code>lane</code> planes Lanes and a lane of late records, a record</p>"
    assert linked(page, terms, "g.html") == (
        '<h2>Lanes</h2><p><code>lane</code> planes <a class="term" href="g.html#term-lane" '
        'title="one &lt;input&gt;">Lanes</a> and a lane of <a class="term" href="g.html#term-late-record" '
        'title="too late">late records</a>, a record</p>'
    )


def test_the_first_pages_show_one_run() -> None:
    """That of the README, which is followed by tests/mesh/test_pages.py."""
    followed = {block.title: block.text for block in blocks_of(REPOSITORY / "README.md")}
    assert len(followed) == 4
    assert {block.title: block.text for block in blocks_of(DOCS / "index.md")} == followed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<script src=https://elsewhere.example/a.js></script>", ["https://elsewhere.example/a.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ["//fonts.example/a.css"]),
        ('<img alt="" src="https://a.example/b.png">', ["https://a.example/b.png"]),
        ('<script src="assets/a.js"></script><link rel="canonical" href="https://a.example/">', []),
        ('<a href="https://a.example/">a</a>', []),
    ],
)
def test_what_would_be_loaded_is_seen(text: str, found: list[str]) -> None:
    assert loaded(text) == found


@pytest.mark.parametrize("text", ["<p>A list:\n- one</p>", "<p>A table\n| a | b |</p>", "<p>Steps:\n1. one</p>"])
def test_what_is_misread_is_seen(text: str) -> None:
    assert misread(text)
    assert not misread("<p>one - two, 3. May</p><pre>\n- one</pre>")
