"""`millstream explain`: what an error code means, what it means for the data, and what to do."""

from __future__ import annotations

import argparse
import re
import textwrap
from difflib import get_close_matches
from typing import Any

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import UserError
from millstream_runner.cli.answer import answer
from millstream_runner.colours import Heading

_WIDTH = 80
_INDENT = "  "


def run(arguments: argparse.Namespace) -> int:
    if arguments.code is None:
        answer(arguments, {"codes": [_as_json(code) for code in codes.CODES.values()]}, _list())
        return 0
    code = codes.find(arguments.code)
    if code is None:
        raise UserError(codes.NO_SUCH_CODE, _unknown(arguments.code))
    answer(arguments, _as_json(code), _page(code))
    return 0


def explained_by(code: Code) -> str:
    """The line after an error, which says where to read more about it."""
    return f"`millstream explain {code}` says what that means for the data, and what to do"


def _list() -> list[str]:
    lines: list[str] = []
    for family, members in codes.families().items():
        lines += [
            Heading(f"{family.title} (exit code {family.exit_code})"),
            *(f"{_INDENT}{code}  {code.title}" for code in members),
            "",
        ]
    return [*lines, "`millstream explain CODE` says what one means for the data, and what to do"]


def _page(code: Code) -> list[str]:
    parts = (("What happened", code.happened), ("What it means for the data", code.data), ("What to do", code.do))
    lines: list[str] = [Heading(f"{code}: {code.title} (exit code {code.exit_code})")]
    for heading, text in parts:
        lines += ["", Heading(heading)]
        lines += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _as_json(code: Code) -> dict[str, Any]:
    return {
        "code": code.id,
        "title": code.title,
        "exit_code": code.exit_code,
        "happened": code.happened,
        "data": code.data,
        "do": code.do,
    }


def _unknown(text: str) -> str:
    """The error suggests codes whose titles contain the word, or else codes with similar numbers."""
    word = text.strip().lower()
    near = [code for code in codes.CODES.values() if word and re.search(rf"\b{re.escape(word)}\b", code.title.lower())]
    if not near:
        ids = get_close_matches(word.upper().removeprefix("MS-"), [str(number) for number in codes.CODES], 3, 0.7)
        near = [codes.CODES[int(number)] for number in ids]
    meant = "; did you mean " + ", ".join(f"{code} ({code.title})" for code in near) + "?" if near else ""
    return f"there is no error code {text!r}{meant or '; `millstream explain` lists them all'}"
