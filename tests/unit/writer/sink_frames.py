"""Frames as a sink lane gets them, for tests of sinks and of what is above them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from millstream.frame import build_frame
from millstream_writer.sink import SinkFrame


def sink_frame(
    values: Sequence[bytes],
    sequence: int,
    *,
    first_index: int = 0,
    ids: Sequence[str] | None = None,
    prefix: str = "out/in/0",
    name: str = "",
    keys: Sequence[Sequence[bytes]] | None = None,
    headers: Sequence[dict[str, bytes]] | None = None,
) -> SinkFrame:
    frame = build_frame(
        values,
        array("q", (1_000_000 * (sequence + row) for row in range(len(values)))),
        ingest_time_us=1,
        keys=keys,
        headers=headers,
        ids=[name.encode() for name in ids] if ids is not None else None,
    )
    return SinkFrame(frame, sequence, first_index, f"{prefix}/{sequence}/", name=name)
