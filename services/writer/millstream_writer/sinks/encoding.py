"""`format` of sinks: values as another program wants them.

    record ─► value fits the schema? ─► the sink, with the value encoded
                          └─ no: refused with the reason, whatever the sink says

Above it: the delivery. Below it: the encoder, and the lane of any sink that writes values as they are. A lane that
keeps a position encodes by itself (`kept`): it writes nothing behind a record that is refused before that one has been
dealt with, because the schema may be another when the lane is opened again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.record import Position
from millstream_udf import columns
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

if TYPE_CHECKING:
    # It brings a client for HTTP.
    from millstream.formats.encoding import Encoder

MISFIT = "value does not fit the schema"


async def encoded(encoder: Encoder, item: SinkFrame) -> tuple[SinkFrame | None, Sequence[int], list[SinkFailure]]:
    """The records whose values can be encoded, with their rows in `item`, and the others. Raises as
    `Encoder.encode`."""
    values: list[bytes] = []
    rows: list[int] = []
    failures: list[SinkFailure] = []
    for row, made in enumerate(await encoder.encode(item.frame.values())):
        if isinstance(made, ValueError):
            failures.append(SinkFailure(row, MISFIT, retryable=False, detail=str(made), shows_value=True))
        else:
            values.append(made)
            rows.append(row)
    if not rows:
        return None, rows, failures
    fit = item.take(rows)
    return replace(fit, frame=replace(fit.frame, values_column=columns.pack_bytes(values))), rows, failures


def of_rows(rows: Sequence[int], failures: Sequence[SinkFailure]) -> list[SinkFailure]:
    """Failures of some of a frame's records, by the rows that they have in it."""
    return [replace(failure, index=rows[failure.index]) for failure in failures]


class EncodingLane(UnkeptLane):
    """A lane whose target keeps no position, with values encoded."""

    def __init__(self, lane: SinkLane, encoder: Encoder) -> None:
        self._lane = lane
        self._encoder = encoder

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        found = [await encoded(self._encoder, item) for item in frames]
        fit = [item for item, _, _ in found if item is not None]
        # An empty write says where the lane is.
        result = await self._lane.write(fit, end)
        refused = iter(result.failures)
        failures: list[list[SinkFailure]] = []
        for item, rows, misfits in found:
            others = of_rows(rows, next(refused, ())) if item is not None else []
            failures.append(sorted([*misfits, *others], key=lambda failure: failure.index))
        return WriteResult(failures if any(failures) else ())

    async def flush(self) -> None:
        await self._lane.flush()

    async def tick(self) -> None:
        await self._lane.tick()
