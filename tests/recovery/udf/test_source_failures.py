"""A user-defined source that fails where it has no answer: it is tried a few times, and then the lane stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream import codes
from millstream.clock import SystemClock
from millstream.extract import Extraction
from millstream.record import LaneId
from millstream.udf.function import open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_connectors.user_defined.source import UserDefinedLane, open_user_defined
from millstream_reader.connector import SourceOwner
from tests.support.errors import raises

FUNCTIONS = """
import pathlib
import millstream_udf as udf

LOG = pathlib.Path(__file__).with_name("log")

def times(what):
    with LOG.open("a") as log:
        print(what, file=log)
    return LOG.read_text().splitlines().count(what)

class Numbers:
    async def open(self, position, partition, partitions):
        self.next = int(position or 0)
    async def read(self, context, records_max, timeout):
        self.next += 1
        return udf.Batch([udf.Record(b"%d" % self.next, event_time=1)], position=b"%d" % self.next)

@udf.source
class Closed(Numbers):
    async def open(self, position, partition, partitions):
        raise LookupError("no such queue")

@udf.source
class Mute(Numbers):
    async def committed(self, position):
        raise PermissionError("acknowledging is not allowed")

@udf.source
class Moody(Numbers):
    async def open(self, position, partition, partitions):
        await super().open(position, partition, partitions)
        if times("open") < 3:
            raise LookupError("no such queue yet")
    async def committed(self, position):
        if times("committed " + position.decode()) < 3:
            raise PermissionError("not yet")
"""


@asynccontextmanager
async def lane(directory: Path, name: str) -> AsyncIterator[UserDefinedLane]:
    (directory / "functions.py").write_text(FUNCTIONS)
    spec = SidecarSpec(python_command(f"{directory}/functions.py:{name}"), "source", "p", "in", stop_timeout_s=5.0)
    stream = StreamName("p", "in", "source.0", 0)
    owner = SourceOwner(LaneId("in", "source", 0), 1, b"", directory, SystemClock(), Extraction())
    async with (
        asyncio.timeout(60),
        open_local_function(spec, log=lambda *_: None) as function,
        open_user_defined(function, stream, owner) as opened,
    ):
        yield opened


async def read(source: UserDefinedLane, number: int) -> None:
    """Read until this record has come, which is the next one."""
    while (batch := await source.read(1, 1 << 20, 0.1)).frame is None:
        pass
    assert batch.frame.values() == [b"%d" % number]
    await source.committed(batch.position)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Closed", "in open: LookupError: no such queue"),
        ("Mute", "in committed: PermissionError: acknowledging is not allowed"),
    ],
)
async def test_a_source_that_goes_on_failing_stops_the_lane(tmp_path: Path, name: str, reason: str) -> None:
    async with lane(tmp_path, name) as source:
        with raises(codes.SOURCE_FUNCTION_FAILED, f"failed 5 times in a row: {reason}"):
            for number in range(1, 10):
                await read(source, number)


async def test_a_source_that_fails_for_a_while_continues_and_what_is_committed_is_acknowledged(tmp_path: Path) -> None:
    async with lane(tmp_path, "Moody") as source:
        for number in range(1, 5):
            await read(source, number)
    said = (tmp_path / "log").read_text().splitlines()
    assert all(said.count(f"committed {number}") >= 3 for number in range(1, 4))
