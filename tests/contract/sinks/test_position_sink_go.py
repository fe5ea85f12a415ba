"""A sink in Go that keeps positions: `examples/udf-go/book`, killed from outside while it writes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.record import LaneId, Position
from millstream_writer.known_target import KnownTarget
from millstream_writer.routing import Router
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.position_lanes import function, lane
from tests.support.errors import raises
from tests.support.sizes import sized
from tests.unit.vertex.lane_rig import open_rig
from tests.unit.writer.sink_frames import sink_frame

FRAMES = sized(60, 200)
EVERY = 15
"""Frames between two kills."""


@pytest.fixture
def command(go_programs: Path) -> list[str]:
    return [str(go_programs / "book")]


def numbers_in(book: Path) -> list[int]:
    if not book.exists():
        return []
    return [json.loads(line)["n"] for line in json.loads(book.read_text())["lines"]]


def values(sequence: int) -> list[bytes]:
    return [value_of(n) for n in range(sequence * 10, sequence * 10 + 10)]


@pytest.mark.guarantee("I1")
async def test_a_function_that_is_killed_again_and_again_writes_each_record_once(
    tmp_path: Path, command: list[str]
) -> None:
    book = tmp_path / "book"
    async with function(book, command, {"BOOK": str(book)}) as client:

        async def kill() -> None:
            for written in range(EVERY, FRAMES - EVERY, EVERY):
                while len(numbers_in(book)) < written * 10:  # noqa: ASYNC110  # of another program there is no event
                    await asyncio.sleep(0.01)
                process = client.sidecar.statistics().pid
                assert process is not None
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

        async with asyncio.TaskGroup() as group:
            group.create_task(kill())
            async with lane(client, sink_owner(1)) as one:
                for sequence in range(1, FRAMES + 1):
                    await one.write([sink_frame(values(sequence), sequence)], Position(sequence))
    assert numbers_in(book) == [*range(10, FRAMES * 10 + 10)]


@pytest.mark.guarantee("I1")
async def test_of_two_owners_in_go_the_older_has_no_effect(tmp_path: Path, command: list[str]) -> None:
    book = tmp_path / "book"
    async with (
        function(book, command, {"BOOK": str(book)}) as first,
        function(book, command, {"BOOK": str(book)}) as second,
        lane(first, sink_owner(1)) as old,
    ):
        await old.write([sink_frame(values(1), 1)], Position(1))
        async with lane(second, sink_owner(2)) as new:
            assert new.durable == Position(1)
            with raises(codes.OUTPUT_TAKEN_OVER):
                await old.write([sink_frame(values(2), 2)], Position(2))
            await new.write([sink_frame(values(2), 2)], Position(2))
        with raises(codes.OUTPUT_TAKEN_OVER):
            async with lane(first, sink_owner(1)):
                pytest.fail("an older owner opened the lane")
    assert numbers_in(book) == [*range(10, 30)]


async def test_a_record_that_is_refused_in_go_is_not_written(tmp_path: Path, command: list[str]) -> None:
    book = tmp_path / "book"
    async with function(book, command, {"BOOK": str(book)}) as client, lane(client, sink_owner(1)) as one:
        given = sink_frame([value_of(1), b"two\nlines", value_of(2)], 1)
        result = await one.write([given], Position(1))
        refused, later = result.failures[0]
        assert (refused.index, refused.reason, later.index, later.untried) == (
            1,
            "the value has several lines",
            2,
            True,
        )
        assert numbers_in(book) == [1]
        assert not (await one.write([given.take([2])], Position(1))).failures
    assert numbers_in(book) == [1, 2]


@pytest.mark.guarantee("I1")
async def test_a_book_that_does_not_know_the_lane_is_not_begun(tmp_path: Path, command: list[str]) -> None:
    """As on another disk. The first book has a position before it has a record."""
    book = tmp_path / "book"
    out = LaneId("out", "in-out", 0)
    async with open_rig() as rig, function(book, command, {"BOOK": str(book)}) as client:
        for is_known in (False, True, True):
            committer = await rig.committer(out, Router([]))
            known = KnownTarget(committer, out.vertex, "udsink", "")
            assert known.is_known == is_known
            async with lane(client, replace(sink_owner(committer.mark.epoch), known=known)) as one:
                await one.write([sink_frame(values(1), 1)], Position(1))
        assert numbers_in(book) == [*range(10, 20)]
        book.unlink()
        committer = await rig.committer(out, Router([]))
        known = KnownTarget(committer, out.vertex, "udsink", "")
        with raises(codes.TARGET_POSITION_LOST):
            async with lane(client, replace(sink_owner(committer.mark.epoch), known=known)):
                pass
    assert numbers_in(book) == []
