"""When a file is finished, and what a file sink does with records it is offered again."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.record import Position
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.sink import Guarantee
from tests.contract.sinks.file_target import file_spec, finished_files, leftovers, numbers_in, sink_owner, value_of
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame

FORMATS = ["jsonl", "csv", "parquet"]


class HandClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic_s(self) -> float:
        return self.seconds


def values(numbers: range) -> list[bytes]:
    return [value_of(number) for number in numbers]


@pytest.mark.parametrize("file_format", FORMATS)
async def test_no_file_has_more_records_than_it_may_have(tmp_path: Path, file_format: str) -> None:
    async with open_sink(file_spec(tmp_path, file_format, maxRecords=30), sink_owner(1)) as lane:
        frames = [sink_frame(values(range(n * 25, n * 25 + 25)), n + 1) for n in range(4)]
        await lane.write(frames, Position(4))
        # Full files are visible at once; the last ten records wait.
        assert numbers_in(tmp_path) == list(range(90))
        assert lane.durable == Position(3, 15)
        await lane.flush()
        assert lane.durable == Position(4)
    assert numbers_in(tmp_path) == list(range(100))
    assert len(finished_files(tmp_path)) == 4


@pytest.mark.parametrize("file_format", FORMATS)
async def test_no_file_has_more_bytes_of_records_than_it_may_have(tmp_path: Path, file_format: str) -> None:
    spec = file_spec(tmp_path, file_format, maxBytes=1000)
    async with open_sink(spec, sink_owner(1)) as lane:
        await lane.write([sink_frame(values(range(200)), 1), sink_frame(values(range(200, 400)), 2)], Position(2))
        await lane.flush()
    files = finished_files(tmp_path)
    assert numbers_in(tmp_path) == list(range(400))
    assert len(files) >= 5
    if file_format == "jsonl":
        assert max(file.stat().st_size for file in files) <= 1050


async def test_a_record_larger_than_a_file_may_be_has_a_file_of_its_own(tmp_path: Path) -> None:
    async with open_sink(file_spec(tmp_path, "jsonl", maxBytes=50), sink_owner(1)) as lane:
        await lane.write([sink_frame([b'"' + b"x" * 500 + b'"', b"1", b'"' + b"y" * 500 + b'"'], 1)], Position(1))
        await lane.flush()
    assert [len(file.read_bytes().splitlines()) for file in finished_files(tmp_path)] == [1, 1, 1]


async def test_an_old_file_is_finished_with_a_tick(tmp_path: Path) -> None:
    clock = HandClock()
    owner = replace(sink_owner(1), clock=clock)
    async with open_sink(file_spec(tmp_path, "jsonl", maxAge="10s"), owner) as lane:
        await lane.write([sink_frame(values(range(5)), 1)], Position(1))
        clock.seconds += 9.9
        await lane.tick()
        assert (finished_files(tmp_path), lane.durable) == ([], Position(0))
        clock.seconds += 0.1
        await lane.tick()
        assert (numbers_in(tmp_path), lane.durable) == (list(range(5)), Position(1))
        # Age counts from the first record, and nothing makes no file.
        clock.seconds += 100
        await lane.tick()
        await lane.write([sink_frame(values(range(5, 9)), 2)], Position(2))
        await lane.tick()
        assert len(finished_files(tmp_path)) == 1


async def test_an_old_file_is_finished_while_records_keep_coming(tmp_path: Path) -> None:
    clock = HandClock()
    async with open_sink(file_spec(tmp_path, "jsonl", maxAge="1s"), replace(sink_owner(1), clock=clock)) as lane:
        for number in range(1, 31):
            await lane.write([sink_frame(values(range(number, number + 1)), number)], Position(number))
            clock.seconds += 0.1
    assert len(finished_files(tmp_path)) == 2


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("file_format", FORMATS)
async def test_what_is_in_a_finished_file_is_not_written_again_and_still_judged(
    tmp_path: Path, file_format: str
) -> None:
    spec = file_spec(tmp_path, file_format)
    stored = [b"no json" if number == 3 else value_of(number) for number in range(10)]
    async with open_sink(spec, sink_owner(1)) as lane:
        await lane.write([sink_frame(stored[:6], 4)], Position(2, 6))
        await lane.flush()
    async with open_sink(spec, sink_owner(2)) as lane:
        assert lane.durable == Position(3, 6)
        result = await lane.write([sink_frame(stored, 4)], Position(4))
        assert [[failure.index for failure in failures] for failures in result.failures] == [[3]]
        await lane.flush()
        assert lane.durable == Position(4)
    assert numbers_in(tmp_path) == [number for number in range(10) if number != 3]


@pytest.mark.guarantee("I10", "I15")
@pytest.mark.parametrize("taken", ["none", "at once"])
@pytest.mark.parametrize("end", [Position(2), Position(1, 3)])
async def test_files_that_are_ahead_of_the_mark_by_frames_that_are_gone_stop_the_lane(
    tmp_path: Path, end: Position, taken: str
) -> None:
    asked: list[tuple[int, str]] = []

    async def another(sequence: int, name: str) -> str | None:
        asked.append((sequence, name))
        return "no frame"

    spec = file_spec(tmp_path, "jsonl")
    frames = [sink_frame(values(range(5)), 1, name="in.0 1 aa"), sink_frame(values(range(5, 8)), 2, name="in.0 2 bb")]
    async with open_sink(spec, sink_owner(1)) as lane:
        await lane.write(frames, end)
        await lane.flush()
    if taken == "at once":
        finished_files(tmp_path)[0].unlink()
    # Another owner has come and gone; what was noted is not lost with it.
    async with open_sink(spec, sink_owner(2)):
        pass
    with raises(codes.SINK_AHEAD, match=r"ends with frame in\.0 2 bb at sequence 2, but the buffer now holds no frame"):
        async with open_sink(spec, sink_owner(3, held_instead=another)):
            pass
    assert asked == [(2, "in.0 2 bb")]
    # Nothing is left out where the mark has come as far; and without the files all that follows the mark is written.
    async with open_sink(spec, sink_owner(4, start=Position(2), held_instead=another)):
        pass
    for entry in tmp_path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    async with open_sink(spec, sink_owner(5, held_instead=another)) as lane:
        await lane.write(frames, end)
        await lane.flush()
    assert numbers_in(tmp_path) == list(range(8))
    assert len(asked) == 1


@pytest.mark.guarantee("I10", "I15")
@pytest.mark.parametrize("again", ["further than its frames", "an earlier frame again"])
async def test_a_files_end_never_has_the_name_of_a_frame_it_does_not_lie_in(tmp_path: Path, again: str) -> None:
    stored = {1: "in.0 1 aa", 2: "in.0 2 bb"}

    async def another(sequence: int, name: str) -> str | None:
        return None if stored.get(sequence) == name else "another frame"

    spec = file_spec(tmp_path, "jsonl")
    first, second = sink_frame(values(range(4)), 1, name=stored[1]), sink_frame(values(range(5, 8)), 2, name=stored[2])
    async with open_sink(spec, sink_owner(1)) as lane:
        if again == "further than its frames":
            # What lies between has no record for this sink.
            await lane.write([first], Position(2))
        else:
            await lane.write([first, second], Position(2))
            rest = replace(sink_frame(values(range(4, 5)), 1, first_index=4, name=stored[1]), attempt=1)
            await lane.write([rest], Position(2))
        await lane.flush()
    async with open_sink(spec, sink_owner(2, held_instead=another)) as lane:
        assert lane.durable == Position(2)


async def test_a_note_without_a_frame_is_taken_as_it_is(tmp_path: Path) -> None:
    async def another(sequence: int, name: str) -> str | None:
        return "no frame"

    spec = file_spec(tmp_path, "jsonl")
    async with open_sink(spec, sink_owner(1)) as lane:
        await lane.write([sink_frame(values(range(5)), 1)], Position(1))
        await lane.flush()
    async with open_sink(spec, sink_owner(2, held_instead=another)) as lane:
        assert lane.durable == Position(1)


async def test_a_lane_whose_files_were_all_moved_away_goes_on_from_its_mark(tmp_path: Path) -> None:
    spec = file_spec(tmp_path, "jsonl")
    async with open_sink(spec, sink_owner(1)) as lane:
        await lane.write([sink_frame(values(range(5)), 1)], Position(1))
        await lane.flush()
    finished_files(tmp_path)[0].unlink()
    async with open_sink(spec, sink_owner(2, start=Position(1))) as lane:
        assert lane.durable == Position(1)
        await lane.write([sink_frame(values(range(5, 9)), 2)], Position(2))
        await lane.flush()
    assert numbers_in(tmp_path) == list(range(5, 9))


@pytest.mark.guarantee("I1")
async def test_a_fallback_never_takes_a_record_for_stored_because_its_neighbours_are(tmp_path: Path) -> None:
    """The sink before it may refuse another record when it is asked again after a crash."""
    spec = file_spec(tmp_path, "jsonl")
    frame = sink_frame(values(range(10)), 3)
    async with open_sink(spec, sink_owner(1).as_fallback()) as lane:
        assert lane.guarantee is Guarantee.AT_LEAST_ONCE
        await lane.write([frame.take([2, 7])], Position(3))
        await lane.flush()
    async with open_sink(spec, sink_owner(2).as_fallback()) as lane:
        assert lane.durable == Position(0)
        await lane.write([frame.take([4])], Position(3))
        await lane.flush()
        assert lane.durable == Position(3)
    assert sorted(numbers_in(tmp_path)) == [2, 4, 7]


async def test_a_sink_and_its_fallback_may_share_a_directory(tmp_path: Path) -> None:
    spec, owner = file_spec(tmp_path, "jsonl"), sink_owner(1)
    async with open_sink(spec, owner) as primary, open_sink(spec, owner.as_fallback()) as fallback:
        frame = sink_frame(values(range(4)), 1)
        await primary.write([frame.take([0, 1])], Position(1))
        await fallback.write([frame.take([2, 3])], Position(1))
        await primary.flush()
        await fallback.flush()
    async with open_sink(spec, sink_owner(2)) as primary:
        assert primary.durable == Position(1)
    assert sorted(numbers_in(tmp_path)) == list(range(4))
    assert leftovers(tmp_path) == []


async def test_parquet_without_arrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "millstream_connectors.file.sink.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises(codes.EXTRA_NEEDED):
        async with open_sink(file_spec(tmp_path, "parquet"), sink_owner(1)):
            pass
