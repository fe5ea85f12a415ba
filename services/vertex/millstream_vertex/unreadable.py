"""Handles input that a source cannot read, as the spec's `onInvalid` says.

Above it: the source's input. Below it: the router of the source's dead letters.
"""

from __future__ import annotations

import logging

from millstream import codes
from millstream.clock import Clock
from millstream.dead_letter import headers_of
from millstream.errors import UserError
from millstream.frame import frame_of_records
from millstream.naming import WITH_VALUES, Naming
from millstream.record import LaneId, Record
from millstream.retry import OnFailure
from millstream_reader.source import InvalidRecord, SourceBatch
from millstream_writer.committer import Unit
from millstream_writer.routing import Router

_log = logging.getLogger(__name__)
_POSITION_CHARACTERS_MAX = 200
"""Maximum length of a source's position in messages and dead letters."""


class Unreadable:
    """The policy of one lane."""

    def __init__(
        self,
        lane: LaneId,
        on_invalid: OnFailure,
        router: Router,
        clock: Clock,
        *,
        pipeline: str = "",
        naming: Naming = WITH_VALUES,
    ) -> None:
        """`router`: of the source, for its dead letters; `naming` decides how messages name a record."""
        self._lane = lane
        self._on_invalid = on_invalid
        self._router = router
        self._clock = clock
        self._where = f"{pipeline}/{lane}"
        self._naming = naming
        self._warned = False

    def set_aside(self, batch: SourceBatch, unit: Unit) -> None:
        """Add what becomes of the invalid input of a batch to a unit. Raises `UserError` if it stops the lane."""
        invalid = batch.invalid
        if not invalid:
            return
        unit.account.inputs += len(invalid)
        if self._on_invalid is OnFailure.DROP:
            unit.account.drop("invalid input", len(invalid))
            self._warn_once(invalid[0], batch, "dropped")
        elif self._on_invalid is OnFailure.DEAD_LETTER and self._router.has_dead_letter:
            now_us = self._clock.now_us()
            records = [Record(item.value, now_us, headers=self._headers_of(item, batch)) for item in invalid]
            unit.frames.extend(self._router.route_dead_letter(frame_of_records(records, ingest_time_us=now_us)).frames)
            unit.account.dead_lettered += len(invalid)
            self._warn_once(invalid[0], batch, "sent to the dead-letter edge")
        else:
            raise UserError(
                codes.RECORD_INVALID,
                f"{self._lane}: {self._named(invalid[0], batch)}\n"
                "Fix the input and start again (nothing was lost), or set the source's onInvalid to drop or "
                "deadLetter.",
            )

    def _warn_once(self, item: InvalidRecord, batch: SourceBatch, fate: str) -> None:
        """Log the first input that cannot be read: without this, only the account would show that none can be read."""
        if not self._warned:
            self._warned = True
            named = self._named(item, batch)
            _log.warning("%s: %s\nIt is %s; others are counted and not logged.", self._where, named, fate)

    def _headers_of(self, item: InvalidRecord, batch: SourceBatch) -> dict[str, bytes]:
        return headers_of(item.reason, "", self._where, position=item.place or position_text(batch.position))

    def _named(self, item: InvalidRecord, batch: SourceBatch) -> str:
        """Describe the input that cannot be read: where it is, and the reason as far as it may be shown."""
        if not self._naming.values:
            place = item.place or f"a record read before source position {position_text(batch.position)}"
            return f"{place} cannot be read (the reason shows values, and `logging.values` is false)"
        if item.place:
            return item.reason
        return f"{item.reason} (read before source position {position_text(batch.position)})"


def position_text(position: bytes) -> str:
    """A source's position, in messages and dead letters."""
    return position.decode(errors="backslashreplace")[:_POSITION_CHARACTERS_MAX]
