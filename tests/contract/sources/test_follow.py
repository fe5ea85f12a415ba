"""Files that grow, on a real disk: rotation, truncation, new files, restarts."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream_connectors.file.source.follow import FOLLOWED_FILES_MAX, ROTATED_WAIT_S, SCAN_INTERVAL_S
from millstream_reader.source import SourceBatch
from tests.contract.sources.lanes import open_lane, read_until, records_of, values
from tests.support.errors import raises
from tests.support.ledgers import SettableClock

LOG = {"file": {"paths": ["app.log"], "follow": True}}
LOGS = {"file": {"paths": ["app.log*"], "follow": True}}


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def enough(count: int) -> Any:
    return lambda records: len(records) >= count


async def test_lines_come_as_they_are_written_and_only_whole_ones(tmp_path: Path) -> None:
    log, clock = tmp_path / "app.log", SettableClock()
    batches: list[SourceBatch] = []
    async with open_lane(LOG, base_dir=tmp_path, clock=clock) as lane:
        # There is no file yet: that is not an error.
        assert (await lane.read(10, 1000, 0.01)).frame is None
        append(log, "one\ntw")
        clock.time_s += SCAN_INTERVAL_S
        await read_until(lane, enough(1), batches)
        assert values(records_of(batches)) == [b"one"]
        assert (await lane.read(10, 1000, 0.01)).frame is None
        append(log, "o\nthree\n")
        assert values(await read_until(lane, enough(3), batches)) == [b"one", b"two", b"three"]
        assert not any(batch.ended for batch in batches)


@pytest.mark.parametrize("spec", [LOG, LOGS], ids=["name only", "rotated names too"])
async def test_a_file_rotated_by_renaming_is_read_to_its_end(tmp_path: Path, spec: dict[str, Any]) -> None:
    log, clock = tmp_path / "app.log", SettableClock()
    batches: list[SourceBatch] = []
    append(log, "1\n2\n")
    async with open_lane(spec, base_dir=tmp_path, clock=clock) as lane:
        await read_until(lane, enough(2), batches)
        with log.open("a") as writer:
            writer.write("3\n")
            writer.flush()
            log.rename(tmp_path / "app.log.1")
            append(log, "4\n")
            clock.time_s += SCAN_INTERVAL_S
            await read_until(lane, enough(4), batches)
            # The writer still has the old file.
            writer.write("5\n")
            writer.flush()
            await read_until(lane, enough(5), batches)
            writer.write("6 without end")
        await lane.read(10, 1000, 0.01)
        append(log, "7\n")
        await read_until(lane, enough(6), batches)
        assert sorted(values(records_of(batches))) == [b"1", b"2", b"3", b"4", b"5", b"7"]
        if spec is LOG:
            # Silent for long enough: it has ended, and its last line counts.
            clock.time_s += ROTATED_WAIT_S
            await read_until(lane, enough(7), batches)
            assert values(records_of(batches))[-1] == b"6 without end"
            last = await lane.read(10, 1000, 0.01)
            assert (last.frame, last.position.count(b"app.log")) == (None, 1)


@pytest.mark.parametrize("spec", [LOG, LOGS], ids=["name only", "rotated names too"])
async def test_a_restart_finds_a_file_that_was_rotated_meanwhile(tmp_path: Path, spec: dict[str, Any]) -> None:
    log = tmp_path / "app.log"
    batches: list[SourceBatch] = []
    append(log, "1\n2\n")
    async with open_lane(spec, base_dir=tmp_path) as lane:
        await read_until(lane, enough(2), batches)
    append(log, "3\n")
    log.rename(tmp_path / "app.log.1")
    append(log, "4\n")
    async with open_lane(spec, batches[-1].position, base_dir=tmp_path) as lane:
        assert sorted(values(await read_until(lane, enough(2)))) == [b"3", b"4"]


async def test_a_restart_reads_nothing_twice_and_goes_on_from_any_position(tmp_path: Path) -> None:
    append(tmp_path / "app.log", "".join(f"{index}\n" for index in range(50)))
    append(tmp_path / "app.log.b", "".join(f"{index}\n" for index in range(50, 80)))
    batches: list[SourceBatch] = []
    async with open_lane(LOGS, base_dir=tmp_path) as lane:
        while len(records_of(batches)) < 80:
            batches.append(await lane.read(7, 1000, 1.0))
    for index, batch in enumerate(batches):
        done = values(records_of(batches[: index + 1]))
        async with open_lane(LOGS, batch.position, base_dir=tmp_path) as lane:
            rest = values(await read_until(lane, enough(80 - len(done))))
            assert (await lane.read(7, 1000, 0.01)).frame is None
        assert sorted(done + rest) == sorted(b"%d" % number for number in range(80))


@pytest.mark.parametrize("longer", [False, True], ids=["shorter", "longer than before"])
async def test_a_truncated_file_is_read_from_its_new_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, longer: bool
) -> None:
    log = tmp_path / "app.log"
    batches: list[SourceBatch] = []
    append(log, "old 1\nold 2\nhalf a li")
    async with open_lane(LOG, base_dir=tmp_path) as lane:
        await read_until(lane, enough(2), batches)
        os.truncate(log, 0)
        append(log, "new 1\n" + ("new\n" * 20 if longer else ""))
        wanted = 23 if longer else 3
        assert values(await read_until(lane, enough(wanted), batches))[2] == b"new 1"
        assert len(records_of(batches)) == wanted
    assert "app.log was truncated" in caplog.text
    assert "the incomplete last line is lost" in caplog.text
    async with open_lane(LOG, batches[-1].position, base_dir=tmp_path) as lane:
        assert (await lane.read(10, 1000, 0.01)).frame is None


async def test_a_file_that_was_replaced_while_nobody_read_is_new_and_the_loss_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "app.log"
    batches: list[SourceBatch] = []
    append(log, "old\n")
    async with open_lane(LOG, base_dir=tmp_path) as lane:
        await read_until(lane, enough(1), batches)
    log.unlink()
    append(log, "another and longer one\n")
    async with open_lane(LOG, batches[-1].position, base_dir=tmp_path) as lane:
        assert values(await read_until(lane, enough(1))) == [b"another and longer one"]
    assert "app.log was removed or overwritten before all of it was read" in caplog.text
    assert "after byte 4" in caplog.text


async def test_a_disk_that_was_moved_has_other_inodes_and_the_same_text(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    batches: list[SourceBatch] = []
    append(log, "1\n2\n")
    async with open_lane(LOG, base_dir=tmp_path) as lane:
        await read_until(lane, enough(2), batches)
    moved = tmp_path / "moved"
    moved.mkdir()
    append(moved / "app.log", "1\n2\n3\n")
    async with open_lane(LOG, batches[-1].position, base_dir=moved) as lane:
        assert values(await read_until(lane, enough(1))) == [b"3"]


async def test_files_that_appear_are_read_and_files_that_go_are_forgotten(tmp_path: Path) -> None:
    clock = SettableClock()
    batches: list[SourceBatch] = []
    async with open_lane(LOGS, base_dir=tmp_path, clock=clock) as lane:
        for index in range(5):
            append(tmp_path / f"app.log{index}", f"{index}\n")
            clock.time_s += SCAN_INTERVAL_S
            await read_until(lane, enough(index + 1), batches)
            (tmp_path / f"app.log{index}").unlink()
        # Two rounds: one sees that the names are gone, one that the files have been silent.
        for _ in range(2):
            clock.time_s += ROTATED_WAIT_S
            last = await lane.read(10, 1000, 0.01)
        assert (last.frame, last.position.count(b"app.log")) == (None, 0)


async def test_csv_and_compressed_neighbours(tmp_path: Path) -> None:
    spec = {"file": {"paths": ["*"], "follow": True, "format": "csv"}}
    append(tmp_path / "a.csv", "id,te")
    (tmp_path / "a.csv.1.gz").write_bytes(b"not even packed")
    batches: list[SourceBatch] = []
    async with open_lane(spec, base_dir=tmp_path) as lane:
        assert (await lane.read(10, 1000, 0.01)).frame is None
        append(tmp_path / "a.csv", 'xt\n1,a\n2,"open\n')
        await read_until(lane, enough(1), batches)
        append(tmp_path / "a.csv", 'closed"\n')
        assert values(await read_until(lane, enough(2), batches)) == [
            b'{"id":"1","text":"a"}',
            b'{"id":"2","text":"open\\nclosed"}',
        ]
    append(tmp_path / "a.csv", "3,c\n")
    async with open_lane(spec, batches[-1].position, base_dir=tmp_path) as lane:
        assert values(await read_until(lane, enough(1))) == [b'{"id":"3","text":"c"}']


async def test_two_lanes_share_the_files_also_when_they_are_renamed(tmp_path: Path) -> None:
    clock = SettableClock()
    for index in range(10):
        append(tmp_path / f"app.log{index}", f"{index}\n")
    seen: list[bytes] = []
    for partition in range(2):
        batches: list[SourceBatch] = []
        async with open_lane(LOGS, base_dir=tmp_path, clock=clock, partition=partition, partitions=2) as lane:
            while (batch := await lane.read(10, 1000, 0.01)).frame is not None:
                batches.append(batch)
            for name in sorted(tmp_path.iterdir()):
                name.rename(name.with_name(f"{name.name}.{partition}"))
            clock.time_s += SCAN_INTERVAL_S
            assert (await lane.read(10, 1000, 0.01)).frame is None
        seen += values(records_of(batches))
    assert sorted(seen) == [b"%d" % index for index in range(10)]


async def test_too_many_files_is_the_users_to_change(tmp_path: Path) -> None:
    for index in range(FOLLOWED_FILES_MAX + 1):
        (tmp_path / f"app.log{index}").touch()
    async with open_lane(LOGS, base_dir=tmp_path) as lane:
        with raises(codes.TOO_MANY_FILES, match=r"more than \d+ files match app.log\*"):
            await lane.read(10, 1000, 0.01)


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
