"""Names of finished files, which contain the position of their lane, and of the directories of partitions. Pure.

    out.map-out.0-0000000000000012.0000000-0000000000000345.0000128-e3.parquet
    └── lane ───┘ └──── after ───────────┘ └──── up to ────────────┘  │
                                                          epoch of the owner

Both positions are exact ones (`sink.exact_end`): sequence, then records of the frame after it. Names sort in the order
of their records. A lane's next file begins where its last one ended.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

from millstream import codes
from millstream.errors import DamageError
from millstream.record import Position

PartitionOf = Callable[[int], str]
"""Maps an event time to the directories of its partition."""
LANE_CHARACTERS_MAX = 150
"""A file name has at most 255 bytes; a longer lane name is truncated and made unique with a checksum."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US = 3_600_000_000
_FORMS = {"year": "%Y", "month": "%m", "day": "%d", "dt": "%Y-%m-%d", "hour": "%H"}
_PATTERN = re.compile(r"(?P<lane>.+)-(\d{16,})\.(\d{7,})-(\d{16,})\.(\d{7,})-e(?P<epoch>\d+)\.(?P<extension>[a-z]+)")


@dataclass(frozen=True, slots=True)
class FinishedName:
    """The name of one finished file."""

    lane: str
    """As `lane_text` makes it."""
    after: Position
    end: Position
    epoch: int
    extension: str

    def __str__(self) -> str:
        return f"{self.lane}-{_text(self.after)}-{_text(self.end)}-e{self.epoch}.{self.extension}"

    @classmethod
    def parse(cls, name: str) -> FinishedName | None:
        """None for a name that is not one of ours."""
        match = _PATTERN.fullmatch(name)
        if match is None:
            return None
        lane, after, after_index, end, end_index, epoch, extension = match.groups()
        return cls(
            lane, Position(int(after), int(after_index)), Position(int(end), int(end_index)), int(epoch), extension
        )


def lane_text(name: str) -> str:
    """A lane's name in file names."""
    if len(name) <= LANE_CHARACTERS_MAX:
        return name
    return f"{name[:LANE_CHARACTERS_MAX]}~{zlib.crc32(name.encode()):08x}"


def how_far(files: Sequence[FinishedName], where: str) -> tuple[Position | None, list[str]]:
    """A lane's position from its finished files, and a description of gaps between them.

    Two files with the same records are damage: another program wrote or copied into the directory. A gap is not damage:
    the consumer of the files may have moved some away.
    """
    odd: list[str] = []
    ordered = sorted(files, key=lambda file: (file.after, file.end))
    for one, other in pairwise(ordered):
        if other.after < one.end:
            raise DamageError(
                codes.SINK_FILES_OVERLAP,
                f"{where}: {one} and {other} hold the same records. Find out which program wrote or copied one of "
                "them, and move it out of the directory.",
            )
        if other.after > one.end:
            odd.append(f"{where}: no file holds the records between {one} and {other}; it was moved away or lost")
    return (ordered[-1].end if ordered else None), odd


def _text(position: Position) -> str:
    return f"{position.sequence:016}.{position.record_index:07}"


def partitions(names: Sequence[str]) -> PartitionOf:
    """Directories of an event time, in UTC: `dt=2024-01-31/hour=08`."""

    @lru_cache(maxsize=1024)
    def of_hour(hour: int) -> str:
        moment = _EPOCH + timedelta(hours=hour)
        # strftime writes a year before 1000 with fewer digits.
        texts = {name: moment.strftime(_FORMS[name].replace("%Y", f"{moment.year:04}")) for name in names}
        return "/".join(f"{name}={texts[name]}" for name in names)

    return lambda time_us: of_hour(time_us // _HOUR_US)
