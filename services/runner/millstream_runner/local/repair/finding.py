"""What a repair has found, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass

RECORDS_SHOWN_MAX = 10
"""Records of one finding that are listed; `-o json` has all that are known."""


@dataclass(frozen=True, slots=True)
class Lost:
    """One stretch of what is affected."""

    what: str
    """Which frames, or which part of a log."""
    behind: str = ""
    """The record before it; empty where that is not known."""
    before: str = ""
    """The record behind it."""
    records: Sequence[str] = ()
    """Those in it that can still be read, each with its id, position, event time and the beginning of its value."""

    @property
    def text(self) -> str:
        places = [f"{word} {record}" for word, record in (("behind", self.behind), ("before", self.before)) if record]
        return f"{self.what}{': ' if places else ''}{', '.join(places)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage."""

    kind: str
    """Which kind of damage, in one word, for programs."""
    what: str
    affects: str
    accept: Callable[[], Awaitable[str]]
    """Gives up what is lost, and tells what it did. May be broken off anywhere, and repeated."""
    lost: Sequence[Lost] = ()
    records: int | None = None
    """Records that are lost; below 0: that may come twice. None where that is unknown."""

    def lines(self) -> list[str]:
        """For people."""
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
        """For programs; without `accept`."""
        return {
            "kind": self.kind,
            "what": self.what,
            "affects": self.affects,
            "records_lost": max(0, self.records) if self.records is not None else None,
            "records_twice": max(0, -self.records) if self.records is not None else None,
            "lost": [asdict(item) for item in self.lost],
        }


def records_text(records: int) -> str:
    """How many, for people."""
    return f"{records:,} records are lost" if records >= 0 else f"{-records:,} records may be there twice"


def bare(error: Exception | str) -> str:
    """What an error says, without its advice, which has been taken here."""
    return str(error).partition(". Restore")[0]
