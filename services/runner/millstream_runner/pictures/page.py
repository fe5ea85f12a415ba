"""Pages that open offline: one file, no script, light and dark, no external content. Pure.

Users' data is text here, and remains text: it goes through `text` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from millstream.printable import in_line

LIGHT = {
    "ground": "#fff",
    "ink": "#1b1f24",
    "soft": "#59636e",
    "line": "#c5cbd3",
    "source": "#dcefe0",
    "map": "#e2ebfa",
    "reduce": "#efe4fa",
    "sink": "#fbead2",
    "back": "#a8326e",
    "apart": "#b4471f",
    "good": "#1a7f37",
    "bad": "#c1272d",
}
DARK = {
    "ground": "#14171b",
    "ink": "#e6e9ed",
    "soft": "#9aa4af",
    "line": "#444c56",
    "source": "#1d3a26",
    "map": "#1d2f4d",
    "reduce": "#35234a",
    "sink": "#46341a",
    "back": "#f08bbd",
    "apart": "#f5a06f",
    "good": "#56d364",
    "bad": "#ff7b72",
}
SERIES = {
    "light": ("#2f6fd0", "#c2571a", "#2b8a3e", "#8a3ffc", "#b5179e", "#0e7c86", "#8d6b00", "#6b7280"),
    "dark": ("#6ea8fe", "#ffa46b", "#69db7c", "#c4a1ff", "#f783d6", "#4dd0db", "#e3c04c", "#a8b0ba"),
}
"""Colours of the lines of a chart, in order."""

_PAGE_RULES = """\
body{background:$ground;color:$ink}.soft,th,figcaption{color:$soft}th,td{border-color:$line}.good{color:$good}.bad{color:$bad}
"""
_PAGE_STYLE = """\
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}
th,td{border-bottom:1px solid;padding:.25rem .7rem;text-align:left;vertical-align:top}
th{font-weight:600}td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
code,pre{font:.85rem ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere;white-space:pre-wrap}
.good,.bad{font-weight:600}svg{height:auto;max-width:100%}.wide svg{max-width:none}
figure{margin:0 0 1.2rem}figcaption{font-size:.85rem}ul{padding-left:1.2rem}
"""


def in_both(rules: str) -> str:
    """Style rules whose colours are names after `$`, for light and for dark. They contain values, not variables,
    because programs that only show pictures do not support variables."""

    def filled(palette: Mapping[str, str]) -> str:
        return re.sub(r"\$(\w+)", lambda found: palette[found[1]], rules)

    return f"{filled(LIGHT)}@media(prefers-color-scheme:dark){{\n{filled(DARK)}}}\n"


def text(value: object) -> str:
    """Any text as text of a page: no part of it is markup, and no program that shows the page interprets it."""
    return escape(in_line(str(value)))


def page(title: str, parts: Iterable[str]) -> str:
    """A complete page. `parts`: its markup, in order."""
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        # In case anything got in: no script runs, nothing is loaded.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(title)}</title>",
        f"<style>\n{_PAGE_STYLE}{in_both(_PAGE_RULES)}</style>",
        "</head>",
        "<body>",
        "<main>",
        *parts,
        "</main>",
        "</body>",
        "</html>",
        "",
    ])  # fmt: skip


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: frozenset[int] = frozenset()) -> str:
    """A table; `numbers`: columns that are aligned to the right."""

    def cells(tag: str, row: Sequence[object]) -> str:
        return "".join(_cell(tag, cell, is_number=index in numbers) for index, cell in enumerate(row))

    lines = [f"<thead><tr>{cells('th', titles)}</tr></thead>", "<tbody>"]
    lines += [f"<tr>{cells('td', row)}</tr>" for row in rows]
    return "\n".join(['<div class="wide"><table>', *lines, "</tbody></table></div>"])


def _cell(tag: str, cell: object, *, is_number: bool) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    style = ' class="number"' if is_number else ""
    return f"<{tag}{scope}{style}>{text(cell)}</{tag}>"
