"""Everything a pipeline keeps was set back to an older copy, while what its sinks have written stayed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from millstream.errors import DamageError, first_cause
from tests.mesh.reducing import running, taken_in
from tests.support.children import started
from tests.support.pipelines import open_pipeline
from tests.support.sizes import first

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mesh.conftest import PipelineFiles

SOURCE = "- name: in\n  source: {file: {paths: [input.jsonl], format: jsonl, follow: true}}\n"


@pytest.mark.guarantee("I10", "I15")
@pytest.mark.parametrize("owners", first(1, [1, 2]))
async def test_files_that_are_newer_than_all_ledgers_are_named(
    files: PipelineFiles, tmp_path: Path, owners: int
) -> None:
    def append(records: range) -> None:
        with (tmp_path / "input.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"number": number}) + "\n" for number in records)

    path = files.write(SOURCE + files.file_sink("out"), ["in -> out"])
    append(range(100))
    async with open_pipeline(path, tmp_path / "broker") as run:
        async with running(run) as task:
            await taken_in(run, "out", 100, task)
        store = run.server.store_dir / "jetstream"
        await run.server.kill()
        shutil.copytree(store, tmp_path / "saved")
        await run.server.start()
        for owner in range(owners):
            append(range(100 + owner * 200, 300 + owner * 200))
            async with running(run.again()) as task:
                await taken_in(run, "out", 300 + owner * 200, task)
        written = list(range(100 + owners * 200))
        assert files.numbers("out") == written
        await run.server.kill()
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "saved", store)
        await run.server.start()
        with pytest.RaisesGroup(
            pytest.RaisesExc(DamageError, match=r"away together with \.millstream"), flatten_subgroups=True
        ):
            await run.again().run()
        assert files.numbers("out") == written
        shutil.rmtree(tmp_path / "out")
        # A directory that does not know the lane could also be one on another disk, so the user has to say that it is
        # right.
        with pytest.RaisesGroup(
            pytest.RaisesExc(DamageError, match="has no trace of the lane"), flatten_subgroups=True
        ) as refused:
            await run.again().run()
        (by_hand,) = re.findall("`(mkdir .+?)`", str(first_cause(refused.value)))
        async with started(*shlex.split(by_hand)) as process:
            assert await process.wait() == 0
        async with running(run.again()) as task:
            await taken_in(run, "out", len(written), task)
    # Whatever the older state did not have is written, once.
    assert files.numbers("out") == written[100:]
