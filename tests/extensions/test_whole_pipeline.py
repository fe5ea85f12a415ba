"""A pipeline of which every part is of another package, except for a function: its source and its sink have the form of
those of Millstream, and the buffers between them are files of SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mesh.running import command, start
from tests.recovery.kills import kill_in_turn

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  interStepBuffer: {sqlite: {}}
  vertices:
  - name: in
    source: {spool: {path: in}}
  - name: upper
    udf: {python: "steps.py:upper"}
    placement: {process: own}
  - name: out
    sink: {spool: {path: out}}
  edges:
  - {from: in, to: upper, chain: false}
  - {from: upper, to: out}
"""
FED = 400
RUN = ("run", "pipeline.yaml", "--quiet", "-o", "json")


@pytest.fixture
def spools(installed: None, tmp_path: Path) -> Path:
    """The directory of a pipeline from one spool to another."""
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "steps.py").write_text("def upper(value):\n    return value.upper()\n")
    (tmp_path / "in").mkdir()
    return tmp_path


class Feeder:
    """Another program, which writes files into the first spool."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.values: list[bytes] = []

    async def feed(self, number: int) -> None:
        """Add files."""
        for index in range(FED):
            self.values.append(b"record %d of %d" % (index, number))
            (self._directory / "new").write_bytes(self.values[-1])
            (self._directory / "new").rename(self._directory / str(len(self.values)))


def written(directory: Path) -> Sequence[bytes]:
    """What a reader of the second spool sees, which begins with the first file."""
    values: list[bytes] = []
    while (path := directory / "out" / "out.upper-out.0" / str(len(values) + 1)).exists():
        values.append(path.read_bytes())
    return values


@pytest.mark.guarantee("I1", "I2", "I4")
async def test_each_record_counts_once_though_a_worker_and_then_the_whole_run_is_killed(spools: Path) -> None:
    feeder = Feeder(spools / "in")
    async with start(spools, *RUN) as run:
        await kill_in_turn(run, ("upper-0",), feed=feeder.feed)
        await feeder.feed(1)
        await run.until_more("out")
        run.kill()
    async with start(spools, *RUN) as run:
        await feeder.feed(2)
        await run.until(lambda: run.records("out") == len(feeder.values))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert json.loads(ended.out.splitlines()[-1])["account"]["balanced"]
    assert written(spools) == [value.upper() for value in feeder.values]
    # A command finds what is stored, without a server.
    assert (spools / ".millstream" / "p" / "broker" / "store" / "p.db").exists()
    repaired = await command(spools, "repair", "pipeline.yaml")
    assert repaired.exit_code == 0, repaired.err


@pytest.mark.sweep
async def test_the_connector_is_listed_and_in_the_schema_and_checked_as_any_other(spools: Path) -> None:
    listed = await command(spools, "connectors", "spool", "-o", "json")
    found = json.loads(listed.out)["connectors"]
    assert {(one["role"], one["package"].split()[0]) for one in found} == {
        ("source", "millstream-toys"),
        ("sink", "millstream-toys"),
    }
    schema = await command(spools, "schema")
    assert "Reads the files of a directory in the order of their numbers" in schema.out
    (spools / "in").rmdir()
    ended = await command(spools, "validate", "-o", "json", "pipeline.yaml")
    (problem,) = json.loads(ended.out)["problems"]
    assert (ended.exit_code, problem["path"]) == (2, "spec.vertices[0].source.spool.path")
    assert problem["what"] == f"there is no directory {spools / 'in'}"


async def test_the_machine_is_checked_for_the_buffers(spools: Path) -> None:
    checked = await command(spools, "doctor", "pipeline.yaml", "-o", "json")
    (found,) = [one for one in json.loads(checked.out)["checks"] if one["name"] == "Broker"]
    assert (found["state"], found["found"]) == ("ok", "files of sqlite, without a server")
