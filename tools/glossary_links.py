"""Links words to the glossary: on each page of the site, the first occurrence of a term in the prose.

Pure. Above it: `tools/site_hooks.py`. Below it: the table of docs/glossary.md.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

EVERYDAY = frozenset({
    "buffer", "commit", "connector", "damage", "edge", "function", "guarantee", "header", "pipeline", "position",
    "record", "runner", "sink", "source", "tag", "udf", "window",
})  # fmt: skip
"""Terms that occur on every page, and that readers know or learn on the first one."""
_ROW = re.compile(r"^\| (\*\*.+?) \| (.+?) \|", re.MULTILINE)
_TERM = re.compile(r"\*\*(.+?)\*\*")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_TAG = re.compile(r"(<[^>]+>)")
_NO_PROSE = frozenset(
    {"a", "abbr", "button", "code", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "script", "style", "svg"}
)


@dataclass(frozen=True, slots=True)
class Term:
    """A word of the glossary."""

    word: str
    meaning: str

    @property
    def anchor(self) -> str:
        return "term-" + re.sub(r"\W+", "-", self.word.lower())


def terms_of(glossary: str) -> list[Term]:
    """The terms of the page, one for each name in its table."""
    found = []
    for words, meaning in _ROW.findall(glossary):
        plain = _LINK.sub(r"\1", meaning).replace("`", "").replace("*", "")
        found += [Term(word, plain) for word in _TERM.findall(words)]
    return found


def with_anchors(page: str, terms: list[Term]) -> str:
    """The glossary's own page, with an anchor at each term."""
    for term in terms:
        page = page.replace(f"<strong>{term.word}</strong>", f'<strong id="{term.anchor}">{term.word}</strong>', 1)
    return page


def linked(page: str, terms: list[Term], glossary: str) -> str:
    """A page whose first mention of each term links to `glossary`, its address, with the meaning as a tooltip."""
    wanted = {term.word.lower(): term for term in terms if term.word.lower() not in EVERYDAY}
    return "".join(_linked(page, wanted, glossary))


def _linked(page: str, wanted: dict[str, Term], glossary: str) -> Iterator[str]:
    silent = 0
    for part in _TAG.split(page):
        if part.startswith("<"):
            name = part.strip("</>").partition(" ")[0].lower()
            if name in _NO_PROSE and not part.endswith("/>"):
                silent += -1 if part.startswith("</") else 1
            yield part
        elif silent or not wanted or not part.strip():
            yield part
        else:
            yield _of_text(part, wanted, glossary)


def _of_text(text: str, wanted: dict[str, Term], glossary: str) -> str:
    parts, end = [], 0
    for match in _any_of(tuple(sorted(wanted))).finditer(text):
        term = wanted.pop(_singular(match[0], wanted), None)
        if term is not None:
            title = html.escape(term.meaning)
            link = f'<a class="term" href="{glossary}#{term.anchor}" title="{title}">{match[0]}</a>'
            parts += [text[end : match.start()], link]
            end = match.end()
    return "".join([*parts, text[end:]])


def _singular(word: str, wanted: dict[str, Term]) -> str:
    lower = word.lower()
    return lower if lower in wanted else lower.removesuffix("s")


@cache
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})s?(?![\w-])", re.IGNORECASE)
