"""A ledger that was set back: named by a run, told by `millstream repair`, and gone on without."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.mesh.running import Ended, command, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(900)
CAT = "- name: map\n  udf: {builtin: {name: cat}}\n"


async def gone_on_without(directory: Path) -> Ended:
    """The run behind a repair that accepts the loss."""
    accepted = await command(directory, "repair", "pipeline.yaml", "--accept-loss")
    assert accepted.exit_code == 0, accepted.out + accepted.err
    assert (await command(directory, "repair", "pipeline.yaml")).exit_code == 0
    again = await command(directory, "run", "pipeline.yaml")
    assert again.exit_code == 0, again.out + again.err
    assert "BALANCED" in again.out
    return again


@pytest.mark.sweep
@pytest.mark.guarantee("I10", "I15")
async def test_a_ledger_that_was_set_back_is_named_and_can_be_gone_on_without(
    files: PipelineFiles, tmp_path: Path
) -> None:
    files.write(files.generator(None, rpu=600) + CAT + files.file_sink("out"), ["in => map", "map -> out"])
    async with start(tmp_path, "run", "pipeline.yaml") as running:
        await running.until(lambda: running.records("out") > 0)
        running.interrupt()
        assert (await running.ended()).exit_code == 0
    ledger = tmp_path / ".millstream/p/broker/store/jetstream/millstream/streams/p-map"
    shutil.copytree(ledger, tmp_path / "saved")
    assert (await command(tmp_path, "repair", "pipeline.yaml")).exit_code == 0
    # More than it can have made.
    records = len(files.numbers("out")) + 6000
    files.write(files.generator(records) + CAT + files.file_sink("out"), ["in => map", "map -> out"])
    assert (await command(tmp_path, "run", "pipeline.yaml")).exit_code == 0
    assert files.numbers("out") == list(range(records))
    shutil.rmtree(ledger)
    shutil.copytree(tmp_path / "saved", ledger)

    damaged = await command(tmp_path, "run", "pipeline.yaml")
    assert damaged.exit_code == 5
    assert "millstream repair" in damaged.err
    assert "nothing is lost" not in damaged.out
    told = await command(tmp_path, "repair", "pipeline.yaml")
    assert told.exit_code == 5
    assert "nothing was changed" in told.out
    assert "the mark of lane map/in-map.0 in the ledger of vertex map is back" in told.out
    assert (await command(tmp_path, "repair", "pipeline.yaml")).out == told.out
    assert "accepted as" in (await gone_on_without(tmp_path)).out
    # Every record is there: the target had them before, and what came twice was said.
    assert set(files.numbers("out")) == set(range(records))


@pytest.mark.guarantee("I10")
@pytest.mark.sweep
async def test_a_flipped_bit_in_the_ledger_of_a_sink_is_named_and_can_be_gone_on_without(
    files: PipelineFiles, tmp_path: Path
) -> None:
    files.write(files.generator(None, rpu=600) + files.file_sink("out"), ["in -> out"])
    async with start(tmp_path, "run", "pipeline.yaml") as running:
        await running.until(lambda: running.records("out") > 0)
        running.interrupt()
        assert (await running.ended()).exit_code == 0
    block = max((tmp_path / ".millstream/p/broker/store/jetstream/millstream/streams/p-out/msgs").glob("*.blk"))
    data = bytearray(block.read_bytes())
    # In the mark itself: what removed those before it comes after.
    data[data.rindex(b"p-out.in-out.0.p") + 100] ^= 1
    block.write_bytes(data)
    records = len(files.numbers("out")) + 6000
    files.write(files.generator(records) + files.file_sink("out"), ["in -> out"])

    damaged = await command(tmp_path, "run", "pipeline.yaml")
    assert damaged.exit_code == 5, damaged.out + damaged.err
    assert "the mark of lane out/in-out.0 in the ledger of vertex out is gone" in damaged.err
    assert "millstream repair" in damaged.err
    told = json.loads((await command(tmp_path, "repair", "pipeline.yaml", "-o", "json")).out)
    assert not told["accepted"]
    assert {damage["kind"] for damage in told["damages"]} >= {"mark"}
    await gone_on_without(tmp_path)
    # The target keeps the position: nothing comes twice, and what it had is still there.
    assert files.numbers("out") == list(range(records))
