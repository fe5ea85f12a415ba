"""`millstream wal`: what is in a log, and every fault of it at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream_reduce.log.entries import segment_name
from millstream_reduce.log.inspection import find_logs, inspect_log
from millstream_reduce.log.segments import segment_numbers
from millstream_reduce.windows import WindowConfig
from millstream_runner.cli.main import main
from tests.unit.reduce.log.kept_entries import KeptEntries, make_log, opened
from tests.unit.reduce.queued import EDGE, Lane, frame_of


async def make_queue(directory: Path) -> Lane:
    lane = Lane(directory, WindowConfig("session", timeout_us=10, keyed=True), keep_late=True)
    async with lane.opened() as queue:
        for begin in range(0, 600, 100):
            lane.append(queue, frame_of(range(begin, begin + 8), keys=[b"a", b"b"] * 4))
            queue.close(begin)
        lane.append(queue, frame_of([1, 2]))
        await queue.write_result(1, b"results")
        await lane.acknowledge(queue)
    return lane


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["wal", *arguments])
    return code, capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code, text = shown(capsys, *arguments, "-o", "json")
    return code, json.loads(text)["logs"]


async def test_what_is_in_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await make_queue(tmp_path / "sum" / "0")
    code, (log,) = as_json(capsys, str(tmp_path), "--verify")
    assert code == 0
    assert (log["lane"], log["epoch"], log["inputs"], log["faults"]) == ("p/sum/window.0", 1, {EDGE: 7}, [])
    assert sum(segment["rows"] for segment in log["segments"]) == 48
    assert sum(segment["late"] for segment in log["segments"]) == 2
    assert log["segments"][-1]["state"] == "newest"
    assert log["results"] == [1]
    assert [item["number"] for item in log["hand_overs"]] == [1, 2, 3, 4, 5]
    assert log["hand_overs"][0]["windows"] == [
        {"start_us": 0, "end_us": 16, "keys": ["a"], "early": 0, "records": 4},
        {"start_us": 1, "end_us": 17, "keys": ["b"], "early": 0, "records": 4},
    ]
    code, text = shown(capsys, str(tmp_path))
    assert code == 0
    for part in (
        "of p/sum/window.0",
        "edge a-sum has been read up to stream sequence 7",
        "hand-over 1: 2 windows, 8 records",
        "[1970-01-01T00:00:00Z, 1970-01-01T00:00:00.000016Z) of key 'a': 4 records",
        "results of the hand-overs 1 are kept",
        "nothing is missing",
    ):
        assert part in text


async def test_a_log_in_use_may_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with opened(tmp_path) as written:
        written.append(30)
        await written.sync()
        code, (log,) = as_json(capsys, str(tmp_path), "--verify")
        assert (code, log["faults"], log["inputs"]) == (0, [], {"in-sum": 30})
        assert [segment["number"] for segment in log["segments"]] == list(written.log.segments())


@pytest.mark.guarantee("I10")
async def test_every_fault_is_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = await make_log(tmp_path, 60)
    numbers = segment_numbers(tmp_path)
    gone, cut, flipped = numbers[1], numbers[2], numbers[4]
    (tmp_path / segment_name(gone)).unlink()
    path = tmp_path / segment_name(cut)
    path.write_bytes(path.read_bytes()[:-100])
    path = tmp_path / segment_name(flipped)
    place = next(location for location in written.kept.locations.values() if location.segment == flipped)
    data = bytearray(path.read_bytes())
    data[place.offset + place.length - 1] ^= 1
    path.write_bytes(data)
    code, text = shown(capsys, str(tmp_path))
    assert code == 5
    assert text.count("DAMAGED") == 3
    code, (log,) = as_json(capsys, str(tmp_path), "--verify")
    assert code == 5
    assert f"{segment_name(gone)} is missing" in log["faults"][0]
    assert f"{segment_name(cut)} has" in log["faults"][1]
    assert any(segment_name(cut) in fault for fault in log["faults"][2:])
    assert f"{segment_name(flipped)}, offset {place.offset}: the checksum" in log["faults"][-1]
    assert "It affects records of edge in-sum after stream sequence" in log["faults"][-1]
    # What follows the damaged entry is counted anyway.
    (segment,) = (segment for segment in log["segments"] if segment["number"] == flipped)
    in_it = sum(location.segment == flipped for location in written.kept.locations.values())
    assert segment["entries"] == in_it - 1


async def test_damage_that_only_a_checksum_shows_needs_verifying(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = await make_log(tmp_path, 30)
    place = written.kept.locations[12]
    path = tmp_path / segment_name(place.segment)
    data = bytearray(path.read_bytes())
    data[place.offset + place.length - 1] ^= 1
    path.write_bytes(data)
    assert shown(capsys, str(tmp_path))[0] == 0
    assert shown(capsys, str(tmp_path), "--verify")[0] == 5


async def test_a_torn_tail_and_left_over_segments_are_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_log(tmp_path, 30)
    old = (tmp_path / segment_name(1)).read_bytes()
    async with opened(tmp_path, 2, kept=KeptEntries(needed=set())) as written:
        written.append(3)
        await written.sync()
    (tmp_path / segment_name(1)).write_bytes(old)
    newest = tmp_path / segment_name(segment_numbers(tmp_path)[-1])
    newest.write_bytes(newest.read_bytes()[:-10])
    code, (log,) = as_json(capsys, str(tmp_path), "--verify")
    assert code == 0
    assert log["torn_bytes"] > 0
    assert [segment["state"] for segment in log["segments"]] == ["left over", "newest"]
    assert "being written, or torn by a crash" in shown(capsys, str(tmp_path))[1]


async def test_without_the_newest_header_nothing_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await make_log(tmp_path, 30)
    newest = tmp_path / segment_name(segment_numbers(tmp_path)[-1])
    newest.write_bytes(b"?" + newest.read_bytes()[1:])
    code, (log,) = as_json(capsys, str(tmp_path))
    assert code == 5
    assert "the header of the segment is damaged" in log["faults"][0]


async def test_a_foreign_segment_is_named(tmp_path: Path) -> None:
    await make_log(tmp_path / "one", 30)
    await make_log(tmp_path / "two", 30)
    (tmp_path / "one" / segment_name(2)).write_bytes((tmp_path / "two" / segment_name(2)).read_bytes())
    assert find_logs(tmp_path) == [tmp_path / "one", tmp_path / "two"]
    (fault,) = inspect_log(tmp_path / "one", verify=False).faults
    assert "is segment 2 of the log" in fault


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_a_directory_without_logs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["wal", str(tmp_path / place)]) == 2
    assert place in capsys.readouterr().err
