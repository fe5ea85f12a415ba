"""Adds pages to the documentation site that are not in docs/: MkDocs calls this module while it builds (mkdocs.yml).

- An entry `folder/*` of the navigation becomes the pages in that folder.
- Pages outside docs/ (ARCHITECTURE.md, deploy/README.md) become pages of the site below `repository/`, and every other
file of the repository that a page links to becomes a text file there, so that all links work offline.
- The first mention of a term on a page links to the glossary (`tools/glossary_links.py`).
- The text after `<!-- made of the code: NAME -->` in a page is replaced by text from the current code.

Above it: MkDocs. It knows no page by name except the landing page.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.livereload import LiveReloadServer
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
sys.path.insert(0, str(REPOSITORY))

from millstream_runner.cli.arguments import parser  # noqa: E402
from tools.glossary_links import linked, terms_of, with_anchors  # noqa: E402
from tools.style import NOT_OURS, TEXT_SUFFIXES  # noqa: E402

OUTSIDE = "repository"
"""Directory of pages and files from outside docs/ on the site."""
LANDING = {"README.md": "index.md"}
"""Pages outside docs/ that have a counterpart on the site."""
FOR_CONTRIBUTORS = ("crash-points.md", "decisions/", "internals.md", f"{OUTSIDE}/CHANGELOG.md")
"""Pages that the search ranks after those for users."""
_FENCE = re.compile(r"^(?P<indent> *)(`{3,}).*?^(?P=indent)\2[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"(?P<before>\]\(|^\[[^\]]+\]: )(?P<target>[^)\s]+)", re.MULTILINE)
_FOR_TESTS = re.compile(r"^(?P<kept> *```\w+.*?) data-[\w-]+=\"[^\"]*\"", re.MULTILINE)
"""Attributes of a fence for the tests of its page, with which MkDocs would not recognize the fence."""
_SAID_TWICE = re.compile(r"^`([^`\n]+)`\n\n(?=```\w+ title=\"\1\")", re.MULTILINE)
"""A file name above its contents, for other viewers; the site shows the title of the fence."""
_ELSEWHERE = re.compile(r"[a-z]+:|#|/")
_MADE = re.compile(r"<!-- made of the code: (\w+) -->.*\Z", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the folders of the navigation."""
    config.nav = _filled(config.nav or [])
    return config


def on_serve(server: LiveReloadServer, config: MkDocsConfig, builder: Callable[..., None]) -> LiveReloadServer:
    """Report an address in use in one sentence, before MkDocs reports it with a traceback."""
    host, port = str(server.server_address[0]), server.server_address[1]
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            remedy = "use another address: make docs ADDRESS=127.0.0.1:8001"
            raise Abort(f"cannot listen on {host}:{port} ({error.strerror}); {remedy}") from error
    return server


def _filled(entries: list[Any]) -> list[Any]:
    filled: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and entry.endswith("/*"):
            filled += _pages_of(entry.removesuffix("/*"))
        elif isinstance(entry, dict):
            ((title, inner),) = entry.items()
            if isinstance(inner, str) and inner.endswith("/*"):
                inner = _pages_of(inner.removesuffix("/*"))
            elif isinstance(inner, list):
                inner = _filled(inner)
            filled.append({title: inner})
        else:
            filled.append(entry)
    return filled


def _pages_of(folder: str) -> list[str]:
    names = sorted(path.name for path in (DOCS / folder).glob("*.md"))
    names.sort(key=lambda name: name not in ("README.md", "index.md"))
    return [f"{folder}/{name}" for name in names]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files outside docs/ that pages link to, and those that these link to."""
    open_ = [DOCS / file.src_uri for file in files.documentation_pages()]
    open_ += [REPOSITORY / name for name in _named(config.nav)]
    seen: set[Path] = set()
    while open_:
        path = open_.pop()
        if path in seen:
            continue
        seen.add(path)
        if not path.is_relative_to(DOCS) and str(path.relative_to(REPOSITORY)) not in LANDING:
            files.append(_file(path, config))
        if path.is_dir():
            open_ += _texts_of(path)
        elif path.suffix == ".md":
            open_ += [target for _, target in _targets(path.read_text(encoding="utf-8"), path) if target not in seen]
    return files


def _named(nav: Any) -> Iterator[str]:
    """Pages outside docs/ that the navigation names."""
    if isinstance(nav, str):
        if nav.startswith(f"{OUTSIDE}/"):
            yield nav.removeprefix(f"{OUTSIDE}/")
    elif nav:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(entry)


def _file(path: Path, config: MkDocsConfig) -> File:
    place = _place(path)
    if path.is_dir():
        links = [f"- [{inner.relative_to(path)}]({inner.relative_to(path)})" for inner in _texts_of(path)]
        text = "\n".join([f"# {path.relative_to(REPOSITORY)}", "", *links, ""])
    else:
        text = path.read_text(encoding="utf-8")
    return File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def _texts_of(folder: Path) -> list[Path]:
    """The committed text files below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix in TEXT_SUFFIXES)
    return sorted(path for path in found if not _is_left_out(path.relative_to(folder)))


def _is_left_out(path: Path) -> bool:
    return any(part.startswith(".") or part in NOT_OURS for part in path.parts)


def _targets(text: str, page: Path) -> Iterator[tuple[re.Match[str], Path]]:
    """Links in a page's prose to files and folders of the repository, each with its target."""
    prose = _CODE.sub(_blank, _FENCE.sub(_blank, text))
    for match in _LINK.finditer(prose):
        if not _ELSEWHERE.match(match["target"]):
            target = (page.parent / match["target"].partition("#")[0]).resolve()
            if target.is_dir() and (target / "README.md").exists():
                target /= "README.md"
            if target.is_relative_to(REPOSITORY) and target.exists():
                yield match, target


def _blank(match: re.Match[str]) -> str:
    """The same number of neutral characters, so that places in the text do not change."""
    return re.sub(r"[^\n]", " ", match[0])


def _place(path: Path) -> str:
    """The place of a file of the repository on the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(REPOSITORY).as_posix()
    if name in LANDING:
        return LANDING[name]
    if path.is_dir():
        return f"{OUTSIDE}/{name}/index.md"
    return f"{OUTSIDE}/{name}" if path.suffix == ".md" else f"{OUTSIDE}/{name}.txt"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert text from the code, and adapt links to the places of their targets on the site."""
    if page.file.src_uri.startswith(FOR_CONTRIBUTORS):
        page.meta.setdefault("search", {"boost": 0.3})
    made = _MADE.search(markdown)
    if made:
        return markdown[: made.start()] + MAKERS[made[1]]()
    uri = page.file.src_uri
    path = REPOSITORY / uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else DOCS / uri
    if uri.endswith("/index.md") and path.parent.is_dir() and not path.exists():
        path = path.parent / "README.md"
    here = posixpath.dirname(uri)
    parts, end = [], 0
    for match, target in _targets(markdown, path):
        anchor = match["target"].partition("#")[1:]
        parts += [markdown[end : match.start("target")], posixpath.relpath(_place(target), here or "."), *anchor]
        end = match.end("target")
    return _SAID_TWICE.sub("", _FOR_TESTS.sub(r"\g<kept>", "".join([*parts, markdown[end:]])))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the first mention of each term to the glossary."""
    glossary = files.get_file_from_path("glossary.md")
    if glossary is None:
        return html
    terms = terms_of((DOCS / "glossary.md").read_text(encoding="utf-8"))
    if page.file is glossary:
        return with_anchors(html, terms)
    return linked(html, terms, get_relative_url(glossary.url, page.url))


def commands() -> str:
    """All commands: usage, description, arguments and examples, as on the command line."""
    return "\n".join(_command(parser(), 2))


def _command(command: argparse.ArgumentParser, level: int) -> Iterator[str]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                if inner.prog.endswith(f" {name}"):
                    yield from _section(inner, level)


def _section(command: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{command.prog}`\n"
    yield "```text"
    yield command.format_help().rstrip()
    yield "```\n"
    yield from _command(command, level + 1)


def sdk() -> str:
    """Every public name of the SDK and of its test kit, for mkdocstrings to look up."""
    import millstream_udf
    from millstream_udf import testing

    names = [f"millstream_udf.{name}" for name in millstream_udf.__all__ if not name.startswith("_")]
    kit = [f"millstream_udf.testing.{name}" for name in testing.__all__]
    sections = [("## For functions\n", names), ("## For their tests: `millstream_udf.testing`\n", kit)]
    return "\n".join(line for title, found in sections for line in [title, *(f"::: {name}\n" for name in found)])


MAKERS: dict[str, Callable[[], str]] = {"commands": commands, "sdk": sdk}
