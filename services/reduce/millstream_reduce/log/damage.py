"""What damage to a log affects, for the error message, so that its readers need not guess.

Above it: recovery and `millstream wal`. Below it: segments, read as far as possible, whatever else is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from millstream import dead_letter
from millstream.errors import DamageError
from millstream_reduce.group_keys import key_texts
from millstream_reduce.log.entries import EntryError, StoredEntry, whole_entries
from millstream_reduce.log.segments import mapped, segment_numbers, segment_path
from millstream_reduce.values import Window, WindowContents, WindowTable

WINDOWS_NAMED_MAX = 5
"""The most windows that a message names; the others are counted."""


@dataclass(slots=True)
class DamagedPart:
    """What the entries of a log say about a part of it."""

    before: dict[str, int] = field(default_factory=dict)
    """How far each edge had been read before that part."""
    after: dict[str, int] = field(default_factory=dict)
    """How far each edge had been read by the first entry after it that has records of the edge."""
    windows: list[WindowContents] = field(default_factory=list)
    """Windows that were handed over and have rows in it."""

    def note(self, entry: StoredEntry, place: tuple[int, int], number: int, start: int, end: int) -> None:
        """Take an entry at `place` into account; unreadable contents say nothing."""
        try:
            message = entry.message()
        except EntryError:
            return
        inputs = message.segment.inputs if message.WhichOneof("kind") == "segment" else message.append.inputs
        for position in inputs:
            if place < (number, start):
                self.before[position.edge] = max(position.sequence, self.before.get(position.edge, 0))
            elif place >= (number, end):
                self.after.setdefault(position.edge, position.sequence)
        hand_overs = [message.hand_over, *message.segment.checkpoint.hand_overs]
        for hand_over in hand_overs:
            # Nothing about damaged data is certain, not even that columns have the same length.
            with contextlib.suppress(DamageError, ValueError):
                windows = WindowTable.of_hand_over(hand_over)
                self.windows.extend(window for window in windows if _lies_in(window, number, start, end))


def affected(directory: Path, number: int, start: int, end: int) -> str:
    """What bytes `start` to `end` of segment `number` contained, as far as the rest of the log says."""
    found = DamagedPart()
    for segment in segment_numbers(directory):
        # A path that is not a file is reported by the code that opens it.
        with contextlib.suppress(DamageError), mapped(segment_path(directory, segment)) as data:
            for entry in whole_entries(data, 0):
                found.note(entry, (segment, entry.offset), number, start, end)
    parts = [_inputs_text(found)]
    if found.windows:
        parts.append(f"it contains rows of {windows_text(found.windows)}")
    parts.append("open windows may lack rows whose records arrived at that time")
    return "It affects " + "; ".join(parts)


def _lies_in(window: WindowContents, number: int, start: int, end: int) -> bool:
    return any(
        piece.segment == number and piece.offset < end and piece.offset + piece.length > start
        for piece in window.pieces
    )


def _inputs_text(found: DamagedPart) -> str:
    edges = sorted({*found.before, *found.after})
    if not edges:
        return "records of unknown position"
    return ", ".join(f"records of edge {edge} {_range_text(found, edge)}" for edge in edges)


def _range_text(found: DamagedPart, edge: str) -> str:
    before, after = found.before.get(edge, 0), found.after.get(edge)
    return f"after stream sequence {before}" + (f" up to {after} at most" if after is not None else "")


def windows_text(windows: Iterable[WindowContents]) -> str:
    """Windows that were handed over, for people: the first ones, and how many there are."""
    unique = dict.fromkeys(one.window for one in windows)
    named = [window_text(one) for one in list(unique)[:WINDOWS_NAMED_MAX]]
    more = len(unique) - len(named)
    return f"{len(unique)} windows that were handed over ({', '.join(named)}{f' and {more} more' if more else ''})"


def window_text(window: Window) -> str:
    """A window for people."""
    text = f"[{time_text(window.start_us)}, {time_text(window.end_us)})"
    if window.key is not None:
        parts = key_texts(window.key)
        text += f" of key {parts[0]!r}" if len(parts) == 1 else f" of key {parts}"
    return f"{text} early result {window.early}" if window.early else text


def time_text(time_us: int) -> str:
    """RFC 3339 in UTC, whole seconds without a fraction; the number itself if no calendar has such a time."""
    return dead_letter.time_text(time_us).replace(".000000", "")
