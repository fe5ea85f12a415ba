"""Chains that get buffers between two runs: where records wait, and after kills, each record comes once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.mesh.running import command, start
from tests.mesh.test_chains import RECORDS, VERTICES, account, contents, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(900)


def is_good(number: int) -> bool:
    """Whether the last vertex gets the number, twice."""
    return number % 10 not in (1, 2, 3) and number % 3 != 0


@pytest.mark.parametrize("ledger", ["jetstream", "redis"])
@pytest.mark.guarantee("I1", "I2", "I6")
@pytest.mark.sweep
async def test_vertices_that_leave_their_chain_one_by_one_between_kills_go_on_where_they_were(
    files: PipelineFiles, tmp_path: Path, ledger: str
) -> None:
    part = RECORDS // 4
    chains = [{"slow", *VERTICES}, {"slow", "twice", "parity"}, {"slow", "twice"}, set[str]()]
    for number, chained in enumerate(chains):
        path = write(files, chained, fed="slow", ledger=ledger)
        if not chained:
            # No buffer was ever before this vertex, where records may wait; so it may have any number of them.
            path.write_text(path.read_text().replace("- name: twice\n", "- name: twice\n      partitions: 3\n"))
        files.feed(range(number * part, (number + 1) * part))
        async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
            if number < len(chains) - 1:
                # All processes are killed at the end of this block.
                await run.until_more("in", than=number * part)
                continue
            await run.until(lambda: run.records("in") >= RECORDS)
            run.interrupt()
            told = account(await run.ended())
    counts = {one["vertex"]: (one["inputs"], one["processed"], one["dead_lettered"]) for one in told["vertices"]}
    assert counts["in"] == counts["slow"] == (RECORDS, RECORDS, 0)
    assert counts["picky"] == (RECORDS, RECORDS * 7 // 10, RECORDS // 5)
    assert counts["parity"][:2] == (2 * counts["twice"][1], 2 * counts["twice"][1])
    written = contents(files)
    good = [number for number in range(RECORDS) if is_good(number)]
    assert written["even"] == [(number, copy) for number in good if number % 2 == 0 for copy in range(2)]
    assert [number for number, *_ in written["dead"]] == [n for n in range(RECORDS) if n % 10 in (1, 3)]
    # What looks for damage, and what looks into buffers, finds the ledger of each vertex.
    assert "no damage found" in (await command(tmp_path, "repair", "pipeline.yaml")).out
    assert (await command(tmp_path, "peek", "picky-twice")).exit_code == 0
    files.feed(range(RECORDS, RECORDS + 10))
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        await run.until_more("in", than=RECORDS + 9)
        run.interrupt()
        inputs = {one["vertex"]: one["inputs"] for one in account(await run.ended())["vertices"]}
    assert inputs["picky"] == RECORDS + 10
    assert inputs["parity"] == counts["parity"][0] + 2 * len([n for n in range(RECORDS, RECORDS + 10) if is_good(n)])


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
async def test_a_dead_letter_edge_that_is_added_gives_the_vertex_a_buffer_to_which_its_records_return(
    files: PipelineFiles, tmp_path: Path
) -> None:
    sinks = "".join(map(files.file_sink, ("out", "dead")))
    vertices = files.generator(20) + files.function("picky", vertex="picky") + sinks
    files.write(vertices.replace(files.file_sink("dead"), ""), ["in -> picky", "picky -> out"])
    failed = await command(tmp_path, "run", "pipeline.yaml")
    assert failed.exit_code == 3
    assert "chain in → picky" in (await command(tmp_path, "validate", "pipeline.yaml")).out
    files.write(vertices, ["in -> picky", "picky -> out", "{from: picky, to: dead, kind: deadLetter}"])
    ended = await command(tmp_path, "run", "pipeline.yaml", "-o", "json", "--quiet")
    assert {one["vertex"]: one["inputs"] for one in account(ended)["vertices"]}["picky"] == 20
    functions = tmp_path / "functions.py"
    functions.write_text(functions.read_text() + "\n\ndef picky(value):\n    return value\n")
    replayed = await command(tmp_path, "deadletters", "replay", "pipeline.yaml")
    assert replayed.exit_code == 0, replayed.err
    ended = await command(tmp_path, "run", "pipeline.yaml", "-o", "json", "--quiet")
    told = {one["vertex"]: one for one in account(ended)["vertices"]}
    assert told["picky"]["processed"] == told["out"]["processed"]
    numbers = files.numbers("out")
    assert sorted(numbers) == sorted(set(numbers))
    assert {json.loads(one.value)["number"] for one in files.envelopes("dead")} <= set(numbers)


@pytest.mark.sweep
async def test_a_vertex_that_left_a_chain_outlives_the_one_whose_ledger_it_is_in(
    files: PipelineFiles, tmp_path: Path
) -> None:
    vertices = {
        "in": files.generator(30),
        "first": files.function("twice_or_not", vertex="first"),
        "second": "- name: second\n  udf: {builtin: {name: cat}}\n",
        "out": files.file_sink("out"),
    }
    edges = ["{from: in, to: first, chain: false}", "first -> second", "second -> out"]
    files.write("".join(vertices.values()), edges)
    assert (await command(tmp_path, "run", "pipeline.yaml")).exit_code == 0
    before = files.rows("out")
    files.write("".join(vertices.values()), [edges[0], "{from: first, to: second, chain: false}", edges[2]])
    assert (await command(tmp_path, "run", "pipeline.yaml")).exit_code == 0
    del vertices["first"]
    files.write("".join(vertices.values()), ["in -> second", "second -> out"])
    ended = await command(tmp_path, "run", "pipeline.yaml", "-o", "json", "--quiet")
    account(ended)
    assert files.rows("out") == before
