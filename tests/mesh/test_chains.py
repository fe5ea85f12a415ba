"""Chains: vertices that run as one lane give what they give with buffers between them, to the record and the count."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.mesh.running import Ended, Running, command, start
from tests.support.sizes import sized

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(900)
RECORDS = 3_000
VERTICES = ("picky", "twice", "parity")
RETRIES = ", retryStrategy: {backoff: {interval: 1ms, steps: 2}}"


def write(
    files: PipelineFiles, chained: set[str], *, records: int = RECORDS, fed: str = "", ledger: str = "jetstream"
) -> Path:
    """A source and three maps in a row, with dead letters in the middle and conditions at the end. `chained`: vertices
    that follow the one before them in a chain. `fed`: the source gets what the test feeds it, through a map of its own
    with this function."""
    maps = files.function("picky", vertex="picky", more=RETRIES) + files.function("twice_or_not", vertex="twice")
    row = ["in", *(["slow"] if fed else []), *VERTICES]
    edges = [f"{{from: {one}, to: {other}, chain: {json.dumps(other in chained)}}}" for one, other in pairwise(row)]
    return files.write(
        (files.fed_source() + files.function(fed, vertex="slow") if fed else files.generator(records))
        + maps
        + files.function("by_parity", vertex="parity")
        + "".join(map(files.file_sink, ("even", "ten", "dead"))),
        [
            *edges,
            "{from: parity, to: even, conditions: {tags: {values: [even]}}}",
            "{from: parity, to: ten, conditions: {tags: {values: [ten]}}}",
            "{from: picky, to: dead, kind: deadLetter}",
        ],
        more=f"interStepBuffer: {{{ledger}: {{}}}}",
    )


def account(ended: Ended) -> dict[str, Any]:
    """The summary, without what depends on how records are stored."""
    assert ended.exit_code == 0, ended.err
    told: dict[str, Any] = json.loads(ended.out.splitlines()[-1])["account"]
    assert told["balanced"]
    vertices = [{key: value for key, value in one.items() if key != "input_bytes"} for one in told["vertices"]]
    return {"vertices": vertices, "edges": told["edges"]}


def processes(run: Running) -> tuple[psutil.Process, list[psutil.Process], psutil.Process] | None:
    """The worker that runs the chain, two of its functions, and what keeps the records; None until all of them run."""
    pids = run.pids()
    try:
        worker, broker = psutil.Process(pids["in-0"]), psutil.Process(pids["broker"])
        functions = worker.children(recursive=True)[:2]
        running = all(one.status() != psutil.STATUS_ZOMBIE for one in (worker, *functions, broker))
    except (KeyError, psutil.NoSuchProcess):
        return None
    return (worker, functions, broker) if running and len(functions) == 2 else None


def contents(files: PipelineFiles) -> dict[str, list[tuple[object, ...]]]:
    """What the sinks have, the same in every run."""
    rows = {sink: [(row["number"], row["copy"]) for row in files.rows(sink)] for sink in ("even", "ten")}
    dead = [(json.loads(one.value)["number"], one.reason, one.vertex, one.lane) for one in files.envelopes("dead")]
    assert len({one.position for one in files.envelopes("dead")}) == len(dead)
    return {**{sink: sorted(found) for sink, found in rows.items()}, "dead": sorted(dead)}


@pytest.mark.guarantee("I1", "I2")
async def test_a_chain_gives_what_buffers_give(files: PipelineFiles, tmp_path: Path) -> None:
    write(files, set())
    expected = account(await command(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json"))
    written = contents(files)
    assert len(written["dead"]) == RECORDS // 5
    # From the source on, and behind a buffer.
    for chained in (set(VERTICES), {"twice", "parity"})[: sized(1, 2)]:
        write(files, chained)
        ended = await command(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json", "--fresh", "--move-outputs")
        assert account(ended) == expected
        assert contents(files) == written


@pytest.mark.parametrize("ledger", ["jetstream", pytest.param("redis", marks=pytest.mark.sweep)])
@pytest.mark.guarantee("I1", "I2", "I6")
async def test_a_chain_is_exact_when_its_worker_its_functions_and_its_broker_are_killed(
    files: PipelineFiles, tmp_path: Path, ledger: str
) -> None:
    write(files, {"slow", *VERTICES}, fed="slow", ledger=ledger)
    part = RECORDS // 6
    files.feed(range(part))
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        for share in range(1, sized(4, 6)):
            files.feed(range(share * part, (share + 1) * part))
            # The part before is begun, so the kill falls into the work on both.
            await run.until_more("in", than=(share - 1) * part)
            worker, functions, broker = await run.found(lambda: processes(run))
            for victim in ([worker], functions, [broker], [worker, broker], functions)[share - 1]:
                victim.kill()
        files.feed(range((share + 1) * part, RECORDS))
        await run.until(lambda: run.records("in") >= RECORDS)
        run.interrupt()
        ended = await run.ended()
    told = account(ended)
    counts = {one["vertex"]: (one["inputs"], one["processed"], one["dead_lettered"]) for one in told["vertices"]}
    assert counts["in"] == counts["slow"] == (RECORDS, RECORDS, 0)
    assert counts["picky"] == (RECORDS, RECORDS * 7 // 10, RECORDS // 5)
    written = contents(files)
    good = [number for number in range(RECORDS) if number % 10 not in (1, 2, 3) and number % 3]
    assert written["even"] == [(number, copy) for number in good if number % 2 == 0 for copy in range(2)]
    assert [number for number, *_ in written["dead"]] == [n for n in range(RECORDS) if n % 10 in (1, 3)]


@pytest.mark.sweep
async def test_an_edge_inside_a_chain_has_no_buffer_and_says_so(files: PipelineFiles, tmp_path: Path) -> None:
    write(files, set(VERTICES), records=50)
    assert (await command(tmp_path, "run", "pipeline.yaml")).exit_code == 0
    for words in (
        ("peek", "picky-twice"),
        ("tap", "in-picky"),
        ("deadletters", "replay", "pipeline.yaml", "--to", "twice"),
    ):
        ended = await command(tmp_path, *words)
        assert ended.exit_code == 2
        assert "MS-2140" in ended.err
        assert "picky-dead-dead-letter, parity-even, parity-ten" in ended.err
    # A dead letter of a vertex inside goes to no buffer either.
    replayed = await command(tmp_path, "deadletters", "replay", "pipeline.yaml")
    assert "follows in in a chain" in replayed.out + replayed.err
    graph = await command(tmp_path, "graph", "pipeline.yaml", "-o", "json")
    assert json.loads(graph.out)["chains"] == [["in", *VERTICES]]
    status = json.loads((await command(tmp_path, "status", "-o", "json")).out)
    assert {one["vertex"]: one["records"] for one in status["vertices"]}["picky"] == 50


@pytest.mark.sweep
async def test_the_vertex_that_holds_up_its_chain_is_called_slow(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.fed_source()
        + files.function("identity", vertex="quick")
        + files.function("slow", vertex="slow")
        + files.file_sink("out"),
        ["in -> quick", "quick -> slow", "slow -> out"],
    )
    files.feed(range(100_000))
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until_more("slow")
        while "slow: slow (its chain waits for it" not in (await command(tmp_path, "status")).out:
            assert run.process.returncode is None, run.err
        run.interrupt()
        await run.ended()


@pytest.mark.sweep
async def test_what_is_chained_is_part_of_what_is_stored(files: PipelineFiles, tmp_path: Path) -> None:
    write(files, {"twice"}, records=50)
    assert (await command(tmp_path, "run", "pipeline.yaml")).exit_code == 0
    write(files, {"twice", "parity"}, records=50)
    refused = await command(tmp_path, "run", "pipeline.yaml")
    assert refused.exit_code == 2
    assert "MS-2302" in refused.err
    assert (
        "edge twice-parity has its buffer in the ledger of picky in the stored data, but now is chained" in refused.err
    )
    # An edge that comes into the chain has moved, though neither of its ends has.
    assert "edge parity-even has its buffer in the ledger of parity in the stored data" in refused.err


@pytest.mark.guarantee("I1", "I2")
async def test_a_chain_behind_a_join_counts_and_names_the_records_of_each_of_its_lanes(
    files: PipelineFiles, tmp_path: Path
) -> None:
    sources = "".join(f"- name: {name}\n  source: {{generator: {{rpu: 200, records: 200}}}}\n" for name in "ab")
    maps = "".join(f"- name: {name}\n  udf: {{builtin: {{name: cat}}}}\n" for name in ("join", "cat"))
    edges = ["{from: a, to: join}", "{from: b, to: join}", "{from: join, to: cat, chain: true}"]
    edges += ["{from: cat, to: out, chain: true}"]
    files.write(sources + maps + "- name: out\n  sink: {log: {}}\n", edges)
    ended = await command(tmp_path, "run", "pipeline.yaml", "-o", "json")
    counts = {one["vertex"]: one["inputs"] for one in account(ended)["vertices"]}
    assert counts == {"a": 200, "b": 200, "join": 400, "cat": 400, "out": 400}
    ids = [json.loads(line)["id"] for line in ended.out.splitlines() if line.startswith('{"id"')]
    assert len(ids) == len(set(ids)) == 400
    status = json.loads((tmp_path / ".millstream/p/status.json").read_text())
    assert {one["vertex"]: one["records"] for one in status["vertices"]} == counts


ARROW = '''
import pyarrow as pa
import pyarrow.compute as pc

import millstream_udf as udf


def own(batch, **columns):
    return pa.RecordBatch.from_pydict({**columns, "parent": batch["parent"]})


@udf.map(arrow=True, schema=pa.schema({"number": pa.int64()}))
def named(batch):
    """Leaves every tenth record out."""
    batch = batch.filter(pc.not_equal(pc.subtract(batch["number"], pc.multiply(pc.divide(batch["number"], 10), 10)), 0))
    return own(batch, number=batch["number"], name=pc.cast(batch["number"], pa.string()))


@udf.map(arrow=True, schema=pa.schema({"number": pa.int64(), "name": pa.string()}))
def halved(batch):
    if pc.any(pc.equal(batch["number"], 333)).as_py():
        raise ValueError("not this one")
    return own(batch, name=batch["name"], half=pc.divide(pc.cast(batch["number"], pa.float64()), 2))
'''


@pytest.mark.sweep
async def test_arrow_functions_give_in_a_chain_what_they_give_with_buffers(
    files: PipelineFiles, tmp_path: Path
) -> None:
    """In a chain, the second one gets the columns of the first one, which need not be written as JSON."""
    (tmp_path / "functions.py").write_text(ARROW)
    retries = "    retryStrategy: {backoff: {interval: 1ms, steps: 1}}\n"
    vertices = (
        files.generator(RECORDS)
        + "- name: named\n  udf: {python: 'functions.py:named'}\n"
        + f"- name: halved\n  udf:\n    python: 'functions.py:halved'\n{retries}"
        + files.file_sink("out")
        + files.file_sink("dead")
    )
    found = []
    for chained in (False, True):
        chain = json.dumps(chained)
        edges = [f"{{from: in, to: named, chain: {chain}}}", f"{{from: named, to: halved, chain: {chain}}}"]
        files.write(vertices, [*edges, "halved -> out", "{from: halved, to: dead, kind: deadLetter}"])
        ended = await command(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json", "--fresh", "--move-outputs")
        rows = sorted((row["name"], row["half"]) for row in files.rows("out"))
        found.append((account(ended), rows, [(one.value, one.reason, one.vertex) for one in files.envelopes("dead")]))
    assert found[0] == found[1]
    _, rows, dead = found[1]
    assert rows == sorted((str(number), number / 2) for number in range(RECORDS) if number % 10 and number != 333)
    assert [(value, vertex) for value, _, vertex in dead] == [(b'{"number":333,"name":"333"}', "halved")]
