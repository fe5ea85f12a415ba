"""A pipeline in Go from end to end: source, map and sink are the examples of `examples/udf-go`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.sandbox import refusal
from tests.small_disk import give_up
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

EXAMPLES = Path(__file__).parents[2] / "examples" / "udf-go"
NUMBERS = 1000
"""What the example's source counts to."""
WORDS = ["ONE", "TWO", "THREE"]


async def test_a_source_a_map_and_a_sink_in_go_carry_each_record_once(
    files: PipelineFiles, go_programs: Path, tmp_path: Path
) -> None:
    """Beside them, a map in Go whose process ends on two of its records: these are dead letters."""
    written = tmp_path / "written"
    (tmp_path / "texts").write_text("one\nend:now\ntwo\nfatal:now\nthree\n")

    def command(name: str) -> str:
        return f"command: [{json.dumps(str(go_programs / name))}]"

    path = files.write(
        f"- name: in\n  partitions: 2\n  source: {{udsource: {{{command('counter')}}}}}\n"
        f"- name: map\n  udf: {{{command('identity')}}}\n"
        f"- name: out\n  sink: {{udsink: {{{command('lines')}, env: [{{name: LINES, value: {written}}}]}}}}\n"
        f"- name: texts\n  source: {{file: {{paths: [texts], format: lines}}}}\n"
        f"- name: ending\n  udf: {{{command('conformance')}}}\n"
        "- name: others\n  sink: {file: {path: others, format: lines}}\n" + files.file_sink("dead"),
        [
            *("in -> map", "map -> out", "texts -> ending", "ending -> others"),
            "{from: ending, to: dead, kind: deadLetter}",
        ],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        account = await run.account("out")
    assert account.inputs == NUMBERS
    values = dict(line.split() for line in written.read_text().splitlines())
    assert sorted(map(int, values.values())) == list(range(NUMBERS))
    assert [line for file in files.directory.glob("others/*.txt") for line in file.read_text().split()] == WORDS
    dead = {envelope.value.decode(): envelope.reason for envelope in files.envelopes("dead")}
    in_a_row = "3 times in a row, when it had this record alone"
    assert dead == {
        "end:now": f"its process exited with code 9, {in_a_row}",
        "fatal:now": f"its process exited with code 2, {in_a_row}",
    }


async def test_a_map_in_go_works_in_the_strict_sandbox(files: PipelineFiles, go_programs: Path, tmp_path: Path) -> None:
    refused = refusal(strict=True, network=False, limits=frozenset())
    if refused is not None:
        give_up(f"there is no sandbox here: {refused}")
    # A sandbox shows the directory of the pipeline, and none that lies elsewhere.
    shutil.copy(go_programs / "identity", tmp_path / "identity")
    path = files.write(
        files.generator(NUMBERS)
        + "- name: map\n  udf: {command: [./identity], sandbox: strict, limits: {files: 64}}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
    assert sorted(files.numbers("out")) == list(range(NUMBERS))
