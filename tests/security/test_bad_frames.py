"""Unusable frames from a writer that may publish and whose mark is right: damage, named and stepped over."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.frame import build_frame
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan import resolved
from millstream.record import BufferId, LaneId
from millstream.values import Values
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.stored import open_stored_buffer
from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import called, command, start
from tests.support.ledgers import LaneOwner

MORE = 6000
"""Records that are still to come when a frame is spoilt."""
SOURCE = LaneId("in", "source", 0)
BUFFER = BufferId("in-out", 0)


def falling() -> bytes:
    """Two records, the offsets of whose values fall."""
    frame = build_frame([b"abc", b"d"], array("q", [1, 2]), ingest_time_us=0, ids=[b"one", b"two"])
    values = frame_pb2.SealedBytesColumn(offsets=columns.pack_offsets([0, 9, 4]), data=b"abcd")
    return replace(frame, contents=Values(values.SerializeToString())).encode()


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    return PipelineFiles(tmp_path)


async def publish(directory: DataDirectory, frame: bytes, records: int) -> None:
    """As the lane of the source would, and with all of its rights: a commit that counts, with a mark that fits."""
    plan = resolved.load(directory.read_pipeline()).plan
    async with open_stored_buffer(directory, plan, "intruder", require=DurabilityLevel.FSYNC) as buffer:
        ledger = await buffer.broker.existing_ledger("in")
        assert ledger is not None
        owner = LaneOwner(ledger, SOURCE, await ledger.take_over(SOURCE, "intruder"))
        commit = owner.commit_of((BUFFER, frame))
        for written in commit.mark.written:
            written.records += records
        for name in ("inputs", "processed", "outputs"):
            setattr(commit.mark.account, name, getattr(commit.mark.account, name) + records)
        await owner.send(commit)


@pytest.mark.guarantee("I10")
async def test_a_frame_of_somebody_with_rights_is_damage_that_is_named_and_stepped_over(
    files: PipelineFiles, tmp_path: Path
) -> None:
    files.write(files.generator(None, rpu=2000) + files.file_sink("out"), ["in -> out"])
    async with start(tmp_path, "run", "pipeline.yaml") as running:
        await running.until(lambda: running.records("out") > 0)
        running.interrupt()
        assert (await running.ended()).exit_code == 0
    records = len(files.numbers("out")) + MORE
    files.write(files.generator(records) + files.file_sink("out"), ["in -> out"])
    directory = DataDirectory(tmp_path / ".millstream" / "p")
    await publish(directory, falling(), records=2)

    stopped = await command(tmp_path, "run", "pipeline.yaml")
    assert stopped.exit_code == 5, stopped.out + stopped.err
    # Which frame, whose, where, and what to do; and it is not a fault of ours.
    for part in ("of lane in/source.0 at sequence", "cannot be used", "offsets fall", "millstream repair"):
        assert part in stopped.err, stopped.err
    assert "defect" not in stopped.err
    before = set(files.numbers("out"))

    looked = await called(tmp_path, "repair", "pipeline.yaml", "-o", "json")
    assert looked.exit_code == 5, looked.out + looked.err
    (damage,) = json.loads(looked.out)["damages"]
    assert damage["records_lost"] == 2
    assert "lane in/source.0" in json.dumps(damage)
    accepted = await called(tmp_path, "repair", "pipeline.yaml", "--accept-loss")
    assert accepted.exit_code == 0, accepted.out + accepted.err
    again = await command(tmp_path, "run", "pipeline.yaml")
    assert again.exit_code == 0, again.out + again.err
    # The account says what is missing; everything else is there, once.
    assert "BALANCED" in again.out
    assert "out: 2 accepted as lost by `millstream repair`" in again.out
    found = files.numbers("out")
    assert sorted(found) == list(range(records))
    assert before < set(found)
