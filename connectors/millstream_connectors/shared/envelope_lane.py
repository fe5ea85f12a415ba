"""Records as envelopes: JSON objects for records of any kind, with the reason of a dead letter.

Above it: the delivery, which is not aware of envelopes. Below it: the sink, which gets frames whose values are
envelopes. Keys, headers, times, ids and positions stay unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from millstream.dead_letter import MEMBERS, envelope_line, envelope_of
from millstream.record import Position
from millstream.values import Values
from millstream_connectors.shared.columns import Column
from millstream_writer.sink import (
    DividingLane,
    FinishingLane,
    GatheringLane,
    Guarantee,
    SinkFrame,
    SinkLane,
    WholeLane,
    WriteResult,
)

ENVELOPE_COLUMNS = tuple(Column(name=name, type="timestamp" if name == "eventTime" else "string") for name in MEMBERS)
"""Columns of a Parquet file without configured columns."""


class EnvelopeLane:
    """A sink's lane that gets the envelope of each record as its value."""

    def __init__(self, lane: SinkLane, *, flat: bool) -> None:
        """`flat`: for columns; keys and headers are JSON text."""
        self._lane = lane
        self._flat = flat

    @property
    def guarantee(self) -> Guarantee:
        return self._lane.guarantee

    @property
    def durable(self) -> Position | None:
        return self._lane.durable

    @property
    def in_progress(self) -> Position | None:
        return self._lane.in_progress if isinstance(self._lane, FinishingLane) else self._lane.durable

    @property
    def gathers(self) -> bool:
        return isinstance(self._lane, GatheringLane) and self._lane.gathers

    @property
    def collects(self) -> bool:
        return self._whole.collects

    @property
    def is_ripe(self) -> bool:
        return self._whole.is_ripe

    @property
    def delivery_records_max(self) -> int:
        return self._whole.delivery_records_max

    @property
    def divides(self) -> bool:
        return isinstance(self._lane, DividingLane) and self._lane.divides

    async def reach(self) -> Position:
        return await self._whole.reach()

    @property
    def _whole(self) -> WholeLane:
        assert isinstance(self._lane, WholeLane), "it keeps a position, and its owner requires whole deliveries"
        return self._lane

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return await self._lane.write([self._enveloped(item) for item in frames], end)

    async def flush(self) -> None:
        await self._lane.flush()

    async def tick(self) -> None:
        await self._lane.tick()

    def _enveloped(self, item: SinkFrame) -> SinkFrame:
        values = [line.encode() for line in envelope_lines(item, flat=self._flat)]
        return replace(item, frame=replace(item.frame, contents=Values.of(values)))


def envelope_lines(item: SinkFrame, *, flat: bool = False) -> list[str]:
    """The envelope of each record, one line of JSON."""
    frame = item.frame
    rows = zip(frame.values(), frame.event_times_us(), frame.keys(), frame.headers(), item.record_ids(), strict=True)
    lines: list[str] = []
    for row in rows:
        envelope: dict[str, Any] = envelope_of(*row)
        if flat:
            nested = {name: envelope_line(part) for name, part in envelope.items() if isinstance(part, dict | list)}
            envelope.update(nested)
        lines.append(envelope_line(envelope))
    return lines
