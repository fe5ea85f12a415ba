"""What a repair has found, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass

from millstream.plurals import counted

RECORDS_SHOWN_MAX = 10
"""The most records of one finding that are listed; `-o json` has all that are known."""


@dataclass(frozen=True, slots=True)
class LostStretch:
    """One stretch of affected data."""

    what: str
    """Which frames, or which part of a log."""
    previous: str = ""
    """The record before it; empty if unknown."""
    following: str = ""
    """The record after it."""
    records: Sequence[str] = ()
    """The records in it that can still be read, each with its id, position, event time and the beginning of its
    value."""

    @property
    def text(self) -> str:
        places = [
            f"{word} {record}" for word, record in (("after", self.previous), ("before", self.following)) if record
        ]
        return f"{self.what}{': ' if places else ''}{', '.join(places)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One case of damage."""

    kind: str
    """The kind of damage in one word, for programs."""
    what: str
    affects: str
    accept: Callable[[], Awaitable[str]]
    """Gives up what is lost, and returns what it did. It may be interrupted anywhere, and repeated."""
    lost: Sequence[LostStretch] = ()
    records: int | None = None
    """Records that are lost; negative: that may appear twice. None if unknown."""

    def lines(self) -> list[str]:
        """The finding for people."""
        lines = [f"DAMAGED: {self.what}", f"  affects: {self.affects}"]
        if self.records:
            lines.append(f"  {records_text(self.records)}")
        for item in self.lost:
            lines.append(f"  {item.text}")
            lines += [f"    {record}" for record in item.records[:RECORDS_SHOWN_MAX]]
            if len(item.records) > RECORDS_SHOWN_MAX:
                lines.append(f"    and {len(item.records) - RECORDS_SHOWN_MAX:,} more (-o json lists them)")
        return lines

    def as_json(self) -> dict[str, object]:
        """The finding for programs; without `accept`."""
        return {
            "kind": self.kind,
            "what": self.what,
            "affects": self.affects,
            "records_lost": max(0, self.records) if self.records is not None else None,
            "records_twice": max(0, -self.records) if self.records is not None else None,
            "lost": [asdict(item) for item in self.lost],
        }


def records_text(records: int) -> str:
    """The number, for people."""
    return (
        f"{counted(records, 'record')} {'is' if records == 1 else 'are'} lost"
        if records >= 0
        else f"{counted(-records, 'record')} may appear twice"
    )


def bare(error: Exception | str) -> str:
    """The message of an error, without its advice, which is being followed here."""
    return str(error).partition(". Restore")[0]
