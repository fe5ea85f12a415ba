"""A lane that has used its target before does not begin in another one, on another disk, or in one that was emptied."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream import codes
from millstream.errors import FencedError
from millstream.record import LaneId, Position
from millstream.spec.programs import Program
from millstream.spec.sinks import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.committer import Committer, Unit
from millstream_writer.connector import SinkConnector
from millstream_writer.known_target import KnownTarget
from millstream_writer.routing import Router
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import file_spec, sink_owner, value_of
from tests.contract.sinks.sink_targets import (
    SinkTarget,
    delta_spec,
    iceberg_spec,
    iceberg_table,
    open_target,
    sql_spec,
    sqlite_rows,
)
from tests.support.errors import raises
from tests.unit.vertex.lane_rig import Rig, open_rig
from tests.unit.writer.sink_frames import sink_frame

if TYPE_CHECKING:
    from tests.support.postgres_server import PostgresServer

LANE = LaneId("out", "in-out", 0)
LOCAL = ("file jsonl", "sqlite insert", "delta", "iceberg", "udsink positions")
"""The sinks that keep positions, with targets on a local disk."""


@pytest.fixture(params=LOCAL)
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SinkTarget]:
    (tmp_path / "disk").mkdir()
    async with open_target(request.param, tmp_path / "disk") as opened:
        yield opened


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


class Lane:
    """A lane of a sink vertex, with its ledger."""

    def __init__(self, rig: Rig, target: SinkTarget) -> None:
        self._rig = rig
        self._target = target

    @asynccontextmanager
    async def opened(
        self, spec: FallbackSink | None = None, *, earlier_version: bool = False
    ) -> AsyncIterator[tuple[SinkLane, Committer]]:
        """With its next owner. `earlier_version`: one that does not know whether the target knows the lane."""
        spec = spec if spec is not None else self._target.spec
        committer = await self._rig.committer(LANE, Router([]))
        mark = committer.mark
        connector = spec.connector
        assert isinstance(connector, SinkConnector)
        place = connector.place(spec.settings)
        assert place is not None
        owner = replace(
            sink_owner(mark.epoch, start=Position(mark.sequence, mark.record_index)),
            client=self._target.udf_client,
            known=None if earlier_version else KnownTarget(committer, LANE.vertex, spec.kind, place),
        )
        async with open_sink(spec, owner) as lane:
            yield lane, committer


@pytest.fixture
def lane(rig: Rig, target: SinkTarget) -> Lane:
    return Lane(rig, target)


def frame(number: int) -> SinkFrame:
    """Ten records."""
    numbers = range(10 * number - 10, 10 * number)
    return sink_frame([value_of(n) for n in numbers], number, keys=[[b"%d" % n] for n in numbers])


async def write(lane: SinkLane, *numbers: int) -> None:
    for number in numbers:
        assert not (await lane.write([frame(number)], Position(number))).failures
    await lane.flush()


async def commit(committer: Committer, sequence: int) -> None:
    await committer.commit([Unit(Position(sequence))], watermark_us=0)


def create(target: SinkTarget, place: Path) -> FallbackSink:
    """An empty target in a directory, and the sink that writes into it."""
    place.mkdir(exist_ok=True)
    match target.spec.kind:
        case "file":
            return file_spec(place / "out", "jsonl")
        case "sql":
            file = place / "shop.db"
            sqlite_rows(file, "CREATE TABLE numbers (n INTEGER UNIQUE, text TEXT, place INTEGER PRIMARY KEY)")
            return sql_spec(f"sqlite:///{file}", "insert")
        case "delta":
            return delta_spec(str(place / "table"))
        case "iceberg":
            return iceberg_spec(place)
        case _:
            assert isinstance(target.spec.settings, Program)
            settings = {"python": target.spec.settings.python, "env": [{"name": "PLACE", "value": str(place)}]}
            return FallbackSink.model_validate({"udsink": settings})


def take_away(target: SinkTarget) -> Callable[[], None]:
    """Replace the target by an empty one; the returned function brings it back."""
    directory = target.directory
    aside = directory.with_name(f"aside-{len(list(directory.parent.iterdir()))}")
    directory.rename(aside)
    create(target, directory)

    def bring_back() -> None:
        shutil.rmtree(directory)
        aside.rename(directory)

    return bring_back


def do_as_said(target: SinkTarget, message: str) -> None:
    """Do what the message says about a target that was emptied."""
    quoted = re.findall("`(.+?)`", message)
    match target.spec.kind:
        case "file":
            subprocess.run(shlex.split(quoted[0]), check=True)
        case "sql":
            sqlite_rows(target.directory / "shop.db", quoted[0])
        case "iceberg":
            with iceberg_table(target.directory).transaction() as change:
                change.set_properties({"millstream/p/out.in-out.0": quoted[1]})
        case "udsink":
            statement = f"UPDATE positions SET position = CAST('{quoted[0]}' AS BLOB) WHERE lane = 'p/out.in-out.0'"
            sqlite_rows(target.directory / "written", statement)


@pytest.mark.guarantee("I1")
async def test_an_empty_target_is_refused_and_the_former_one_is_continued(lane: Lane, target: SinkTarget) -> None:
    """What was written after the mark is in the former target, and would be written again."""
    async with lane.opened() as (sink, committer):
        await write(sink, 1)
        await commit(committer, 1)
        await write(sink, 2)
    bring_back = take_away(target)
    for _ in range(2):
        # The refusal leaves nothing that the next opening could take for a trace.
        with raises(codes.TARGET_POSITION_LOST, match=r"out\.in-out\.0 .* its mark is at sequence 1"):
            async with lane.opened():
                pass
    assert target.spec.kind == "file" or target.numbers() == []
    assert not (target.directory / "out").exists()
    bring_back()
    async with lane.opened() as (sink, committer):
        await write(sink, 2, 3)
        await commit(committer, 3)
    assert target.numbers() == list(range(30))


@pytest.mark.guarantee("I1")
async def test_records_before_the_first_commit_count(lane: Lane, target: SinkTarget) -> None:
    async with lane.opened() as (sink, _):
        await write(sink, 1)
    take_away(target)
    with raises(codes.TARGET_POSITION_LOST, match="its mark is at sequence 0"):
        async with lane.opened():
            pass


# The log of a Delta table is not written by hand: there, the message says to name another table.
@pytest.mark.parametrize("target", [kind for kind in LOCAL if kind != "delta"], indirect=True)
async def test_a_lane_continues_in_an_empty_target_if_the_user_says_that_it_is_right(
    lane: Lane, target: SinkTarget
) -> None:
    async with lane.opened() as (sink, committer):
        await write(sink, 1)
        await commit(committer, 1)
    take_away(target)
    if target.spec.kind == "iceberg":
        # The table is recreated by another program.
        async with open_sink(target.spec, sink_owner(1, pipeline="another")):
            pass
    with raises(codes.TARGET_POSITION_LOST) as refused:
        async with lane.opened():
            pass
    do_as_said(target, str(refused.value))
    for numbers in ((2,), (3,)):
        async with lane.opened() as (sink, committer):
            await write(sink, *numbers)
            await commit(committer, numbers[-1])
    assert target.numbers() == list(range(10, 30))


async def test_another_place_in_the_settings_is_another_target(lane: Lane, target: SinkTarget) -> None:
    async with lane.opened() as (sink, committer):
        await write(sink, 1)
        await commit(committer, 1)
    take_away(target)
    place = target.directory / "elsewhere"
    other = create(target, place)
    async with lane.opened(other) as (sink, committer):
        await write(sink, 2)
        await commit(committer, 2)
    # From then on, this is the one that the lane has used.
    take_away(replace(target, directory=place) if target.spec.kind != "udsink" else target)
    with raises(codes.TARGET_POSITION_LOST):
        async with lane.opened(other):
            pass


@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_ledger_of_an_earlier_version_is_accepted_and_learns_the_target(
    lane: Lane, target: SinkTarget, *, is_empty: bool
) -> None:
    async with lane.opened(earlier_version=True) as (sink, committer):
        await write(sink, 1)
        await commit(committer, 1)
    if is_empty:
        take_away(target)
    async with lane.opened() as (sink, committer):
        await write(sink, 2)
        await commit(committer, 2)
    assert target.numbers() == list(range(10 if is_empty else 0, 20))
    take_away(target)
    with raises(codes.TARGET_POSITION_LOST):
        async with lane.opened():
            pass


@pytest.mark.guarantee("I1")
async def test_an_owner_that_was_replaced_before_it_noted_the_target_writes_nothing(
    lane: Lane, target: SinkTarget, rig: Rig
) -> None:
    """The ledger decides: of two owners with a disk each, only the newer one gets a target."""
    committer = await rig.committer(LANE, Router([]))
    connector = target.spec.connector
    assert isinstance(connector, SinkConnector)
    place = connector.place(target.spec.settings)
    assert place is not None
    known = KnownTarget(committer, LANE.vertex, target.spec.kind, place)
    older = replace(sink_owner(committer.mark.epoch), client=target.udf_client, known=known)
    await rig.committer(LANE, Router([]))
    with pytest.raises(FencedError):
        async with open_sink(target.spec, older):
            pass
    assert target.numbers() == []
    async with lane.opened() as (sink, committer):
        await write(sink, 1)
    assert target.numbers() == list(range(10))


async def test_a_table_of_positions_without_the_lane_is_refused_until_it_has_the_row_of_the_message(
    rig: Rig, postgres: PostgresServer, tmp_path: Path
) -> None:
    """A database of a server, which was restored from a copy of before the lane's first record, for example."""
    async with open_target("postgres insert", tmp_path, postgres=postgres) as target:
        lane = Lane(rig, target)
        async with lane.opened() as (sink, committer):
            await write(sink, 1)
            await commit(committer, 1)
        assert target.database is not None
        await target.database.execute("DELETE FROM millstream_positions")
        with raises(codes.TARGET_POSITION_LOST, match="its mark is at sequence 1") as refused:
            async with lane.opened():
                pass
        (statement,) = re.findall("`(INSERT .+?)`", str(refused.value))
        await target.database.execute(statement)
        async with lane.opened() as (sink, committer):
            await write(sink, 2)
            await commit(committer, 2)
        assert target.numbers() == list(range(20))
