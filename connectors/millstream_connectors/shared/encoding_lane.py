"""`format` and `keyFormat` of sinks: values and keys in the encoding that other programs read.

    record ─► value and key fit their schemas? ─► the sink, with both encoded
                          └─ no: refused with the reason

Above it: the delivery. Below it: the encoder, and the lane of any sink that writes values as they are. A lane that
keeps a position encodes by itself (`kept`): after a refused record, it writes nothing until that record has been
handled, because the schema may have changed when the lane is opened again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from millstream.record import Position
from millstream.values import Values
from millstream_udf import columns
from millstream_writer.connector import Encoder, Encoders
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

_Keys = tuple[bytes, ...]
MISFIT = "value does not fit the schema"
KEY_MISFIT = "key does not fit the schema"


def key_of(parts: tuple[bytes, ...]) -> bytes | None:
    """One key for the keys of a record: a single key stays unchanged, and several remain distinguishable."""
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    return json.dumps([part.decode() for part in parts], separators=(",", ":"), ensure_ascii=False).encode()


async def encoded(encoders: Encoders, item: SinkFrame) -> tuple[SinkFrame | None, Sequence[int], list[SinkFailure]]:
    """The records whose values and keys can be encoded, with their rows in `item`, and the failures of the others.
    Raises as `Encoder.encode` does."""
    given = item.frame.values()
    values = list(given) if encoders.values is None else await encoders.values.encode(given)
    keys = await _encoded_keys(encoders.keys, item)
    rows: list[int] = []
    failures: list[SinkFailure] = []
    for row, made in enumerate(values):
        key = keys[row] if keys is not None else ()
        if isinstance(made, ValueError):
            failures.append(SinkFailure(row, MISFIT, retryable=False, detail=str(made), shows_value=True))
        elif isinstance(key, ValueError):
            failures.append(SinkFailure(row, KEY_MISFIT, retryable=False, detail=str(key), shows_value=True))
        else:
            rows.append(row)
    if not rows:
        return None, rows, failures
    fit = item.take(rows)
    frame = fit.frame
    if encoders.values is not None:
        frame = replace(frame, contents=Values.of([cast("bytes", values[row]) for row in rows]))
    if keys is not None:
        frame = replace(frame, keys_column=columns.pack_lists([cast("_Keys", keys[row]) for row in rows]))
    return replace(fit, frame=frame), rows, failures


async def _encoded_keys(encoder: Encoder | None, item: SinkFrame) -> list[_Keys | ValueError] | None:
    """Of each record, its one key; None where no record has one.

    A key fits as a text, or else as the JSON that it is. In this order two keys never become the same: as JSON first,
    the texts `a` and `"a"` would.
    """
    if encoder is None or not item.frame.keys_column:
        return None
    joined = list(map(key_of, item.frame.keys()))
    given = [key for key in joined if key is not None]
    as_texts = await encoder.encode([json.dumps(key.decode(), ensure_ascii=False).encode() for key in given])
    others = [key for key, made in zip(given, as_texts, strict=True) if isinstance(made, ValueError)]
    as_json = iter(await encoder.encode(others))
    best = iter([next(as_json) if isinstance(made, ValueError) else made for made in as_texts])
    found: list[_Keys | ValueError] = []
    for key in joined:
        made = next(best) if key is not None else None
        found.append(() if made is None else made if isinstance(made, ValueError) else (made,))
    return found


def of_rows(rows: Sequence[int], failures: Sequence[SinkFailure]) -> list[SinkFailure]:
    """Failures of some of a frame's records, with their rows in the frame."""
    return [replace(failure, index=rows[failure.index]) for failure in failures]


class EncodingLane(UnkeptLane):
    """A lane whose target keeps no position, with values encoded."""

    def __init__(self, lane: SinkLane, encoders: Encoders) -> None:
        self._lane = lane
        self._encoders = encoders

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        found = [await encoded(self._encoders, item) for item in frames]
        fit = [item for item, _, _ in found if item is not None]
        # An empty write carries the lane's position.
        refused = iter((await self._lane.write(fit, end)).failures)
        failures: list[list[SinkFailure]] = []
        for item, rows, misfits in found:
            others = of_rows(rows, next(refused, ())) if item is not None else []
            failures.append(sorted([*misfits, *others], key=lambda failure: failure.index))
        return WriteResult(failures if any(failures) else ())

    async def flush(self) -> None:
        await self._lane.flush()

    async def tick(self) -> None:
        await self._lane.tick()
