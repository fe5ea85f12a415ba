"""What a target is, and what is done with a frame that a check let pass."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.frame import Frame, build_frame
from millstream_udf import columns
from millstream_writer.routing import Route, Router

BYTES_MAX = 4096
"""Of an input."""

TIMES = array("q", [1_000_000, 2_000_000, 3_000_000])
INPUTS = build_frame(
    [b"one", b"two", b"three"],
    TIMES,
    ingest_time_us=7,
    keys=[[b"k"], [], [b"l", "ü".encode()]],
    headers=[{"h": b"v"}, {}, {"a": b"", "b": b"\xff"}],
    ids=[b"a", b"b", b"c"],
)


@dataclass(frozen=True)
class Target:
    """One decoder."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    """Inputs that it takes."""


def use(frame: Frame) -> None:
    """Everything that is done with a frame that was let pass."""
    with contextlib.suppress(UnicodeDecodeError):
        list(frame.to_records())
    frame.record_sizes()
    frame.slice(0, max(1, frame.records // 2))
    frame.slice(frame.records // 2, frame.records)
    frame.take([frame.records - 1, 0])
    for parts in columns.unpack_lists(frame.keys_column, frame.records):
        b"/".join(parts).decode()
    router = Router([Route("e", 3, None)])
    router.route(frame, None)
    assert Frame.decode(frame.encode()) == frame
