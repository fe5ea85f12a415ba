"""A source that the user wrote, in its real process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.clock import SystemClock
from millstream.spec.models import Source
from millstream.udf.function import open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_reader.source import SourceLane
from millstream_reader.sources.opening import open_source
from tests.contract.sources.lanes import lane_id, read_to_end

COUNTING = Path(__file__).parent / "counting_source.py"


async def test_a_source_of_the_users_own(tmp_path: Path) -> None:
    source = Source.model_validate({"udsource": {"python": f"{COUNTING}:Counting"}, "keys": ["number"]})
    lines: list[str] = []
    spec = SidecarSpec(python_command(f"{COUNTING}:Counting"), role="source", pipeline="p", vertex="in", cwd=tmp_path)
    async with open_local_function(spec, log=lambda _, line: lines.append(line)) as sidecar:

        @asynccontextmanager
        async def opened(position: bytes) -> AsyncIterator[SourceLane]:
            name = StreamName(pipeline="p", vertex="in", lane="source.1", replica=0)
            async with open_source(
                source,
                lane_id(1),
                2,
                position,
                base_dir=tmp_path,
                clock=SystemClock(),
                udf_client=sidecar,
                stream_name=name,
            ) as lane:
                yield lane

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
