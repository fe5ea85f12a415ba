"""A source that the user wrote, in its real process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from millstream import codes
from millstream.clock import SystemClock
from millstream.spec.models import Source
from millstream.udf.function import open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_connectors.opening_sources import open_source
from millstream_reader.source import SourceLane, is_held_up
from tests.contract.sources.lanes import WAIT_S, lane_id, read_to_end
from tests.support.errors import raises

COUNTING = Path(__file__).parent / "counting_source.py"


Opening = Callable[[bytes], AbstractAsyncContextManager[SourceLane]]


@asynccontextmanager
async def open_own(name: str, directory: Path) -> AsyncIterator[Opening]:
    """A class of `counting_source.py` in its process. Gives what opens its lane at a position."""
    written = f"{COUNTING}:{name}"
    source = Source.model_validate({"udsource": {"python": written}, "keys": ["number"]})
    spec = SidecarSpec(python_command(written), role="source", pipeline="p", vertex="in", cwd=directory)
    async with open_local_function(spec, log=lambda _, line: None) as sidecar:

        @asynccontextmanager
        async def opened(position: bytes) -> AsyncIterator[SourceLane]:
            name = StreamName(pipeline="p", vertex="in", lane="source.1", replica=0)
            async with open_source(
                source,
                lane_id(1),
                2,
                position,
                base_dir=directory,
                clock=SystemClock(),
                udf_client=sidecar,
                stream_name=name,
            ) as lane:
                yield lane

        yield opened


async def test_a_source_of_the_users_own(tmp_path: Path) -> None:
    async with open_own("Counting", tmp_path) as opened:
        async with opened(b"") as lane:
            first = await lane.read(4, 1 << 20, 1.0)
            assert lane.pending() == 41
            await lane.committed(first.position)
            records, invalid, _ = await read_to_end(lane)
        assert first.frame is not None
        assert [record.keys for record in first.frame.to_records()] == [("1",), ("3",), ("5",), ("7",)]
        assert [record.event_time_us for record in records] == [number * 1000 for number in range(9, 50, 2)]
        assert not invalid
        async with opened(first.position) as lane:
            assert (await read_to_end(lane))[0] == records


async def test_reads_that_fail_are_told_in_a_line_and_the_last_one_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_own("Failing", tmp_path) as opened, opened(b"") as lane:
        with raises(codes.SOURCE_FUNCTION_FAILED) as raised:
            async with asyncio.timeout(WAIT_S):
                while True:
                    await lane.read(4, 1 << 20, 1.0)
                    assert is_held_up(lane)
    assert {record.getMessage().partition(" s: ")[2] for record in caplog.records} == {"ValueError: no such table"}
    _, what, place, remedy = str(raised.value).replace(": ValueError", "\nValueError").splitlines()
    assert what == "ValueError: no such table"
    assert f"{COUNTING.name}:" in place
    assert place.endswith('in read: raise ValueError("no such table")')
    assert "nothing was lost" in remedy
    assert "Traceback" in raised.value.detail
