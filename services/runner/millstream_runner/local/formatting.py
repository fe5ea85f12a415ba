"""Numbers, times and tables as text. Pure.

Above it: whatever prints. Below it: nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from millstream.clock import END_OF_TIME_US, MICROSECONDS

CUT = "…"
"""Stands for text that did not fit."""
_LAG_SHOWN_AS_TIME_S = 24 * 3600.0
"""A watermark further back than this is shown as a time: the pipeline replays the past."""
_COUNTED_EXACTLY = 10_000_000
_WIDTH = 80
"""Columns where the width is unknown: output that is not a terminal's is read in split windows, and pasted."""
_JOINT = "\0"
"""Stands for a space at which a line is not broken."""
_LENGTH_OF_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> float | None:
    """A length of time such as 30s or 2h; None if it is not one."""
    found = _LENGTH_OF_TIME.fullmatch(text)
    return float(found[1]) * _UNITS_S[found[2]] if found is not None else None


def aligned(rows: Sequence[Sequence[str]], *, left: set[int]) -> list[str]:
    """Rows as lines with columns of equal width; columns in `left` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def aligned_columns(columns: Mapping[Any, Sequence[str]], *, left: Collection[object]) -> list[str]:
    """Like `aligned`, for columns with keys; `left`: the keys of those that are left-aligned."""
    places = {place for place, key in enumerate(columns) if key in left}
    return aligned(list(zip(*columns.values(), strict=True)), left=places)


def folded(text: str, width: int | None, *, indent: int = 0, used: int = 0) -> list[str]:
    """The text as lines of at most `width` columns. Code in backticks is not broken, so that a command can be copied.

    Lines after the first are indented by `indent` columns. `used`: columns that precede the first line.
    """
    whole = re.sub(r"`[^`]*`", lambda code: code.group().replace(" ", _JOINT), text)
    # In place of what precedes, a word: a path that does not fit behind it gets the next line.
    head = "" if not used else _JOINT * used if text.startswith(" ") else _JOINT * (used - 1) + " "
    lines = textwrap.wrap(
        head + whole,
        width or _WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_JOINT, " ") for line in (lines[0][used:], *lines[1:])] if lines else [""]


def shortened(text: str, width: int) -> str:
    """The text in at most `width` characters, with a mark where some were removed."""
    return text if len(text) <= width else text[: max(0, width - 1)] + CUT


def count_text(count: int) -> str:
    """A count in at most nine characters or so: large ones in millions."""
    return f"{count:,}" if count < _COUNTED_EXACTLY else f"{count / 1e6:,.1f}M"


def watermark_text(watermark_us: int | None, lag_s: float | None) -> str:
    """A watermark as its distance from now, or as a time if that says more."""
    if watermark_us is None:
        return "none yet"
    if watermark_us >= END_OF_TIME_US:
        return "end"
    if lag_s is not None and abs(lag_s) < _LAG_SHOWN_AS_TIME_S:
        return f"{lag_s:.1f} s behind"
    return time_text(watermark_us)


def time_text(time_us: int) -> str:
    """A time for people, UTC, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(time_us / MICROSECONDS, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def duration_text(seconds: float) -> str:
    """A duration as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
