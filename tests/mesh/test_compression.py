"""A pipeline whose buffers are compressed in one way after the other, while records wait in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millstream_runner.local.directory import DataDirectory
from tests.mesh.running import command, start
from tests.support.sizes import sized

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mesh.conftest import PipelineFiles

RECORDS = 4000


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize("ledger", ["jetstream", pytest.param("redis", marks=pytest.mark.sweep)])
async def test_records_that_wait_are_read_however_they_were_compressed(
    files: PipelineFiles, tmp_path: Path, ledger: str
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    kinds = ["lz4", "zstd", "GZIP", "none"][-sized(2, 4) :]
    for number, kind in enumerate(kinds, 1):
        files.write(
            files.fed_source() + files.function("held") + files.file_sink("out"),
            ["in => map", "map -> out"],
            more=f"interStepBuffer: {{{ledger}: {{}}, compression: {{type: {kind}}}}}",
        )
        files.feed(range((number - 1) * RECORDS, number * RECORDS))
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            await run.until(lambda count=number * RECORDS: run.records("in") == count)  # type: ignore[misc]
            if kind == kinds[-1]:
                peeked = await command(tmp_path, "peek", "in-map", "--count", "1")
                assert '"number": 0' in peeked.out + peeked.err
                hold.unlink()
                await run.until(lambda: run.records("out") == len(kinds) * RECORDS)
                run.interrupt()
                ended = await run.ended()
                assert ended.exit_code == 0, ended.err
                assert "account: BALANCED" in ended.out
            else:
                run.kill()
                await run.ended()
        if (number, ledger) == (1, "jetstream"):
            store = DataDirectory(tmp_path / ".millstream" / "p").broker / "store"
            stored = sum(path.stat().st_size for path in store.rglob("p-in/msgs/*.blk"))
            assert 0 < stored < (tmp_path / "in.jsonl").stat().st_size, "frames have event times, too"
    assert sorted(files.numbers("out")) == list(range(len(kinds) * RECORDS))
