"""Sets a source's ledger back, many times, and sees whether the pipeline notices before it uses a record.

    python benchmarks/set_back.py [--times 50] [--seed 1] [--json]

Each time, a pipeline of a source, a map and a sink runs on a real broker; a copy of the source's ledger is taken, the
map reads on, everything is killed, and the copy is put in place of the ledger. Then it starts again, with a reader as
fast as its writer, or with one that comes when the source has written past everything that was read. Every other time
the source's OT store is set back, too: then the only trace of what was lost is what the reader has read.

Exit code 1 when it was not noticed, or the map's mark had moved by then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.clock import SystemClock
from millstream.errors import DamageError
from millstream.ledger.witness import newest
from millstream.nats.connection import open_connection
from millstream.wire.ledger.v1 import mark_pb2
from millstream_worker.assembly import open_vertex
from tests.support.pipelines import PipelineRun, open_pipeline

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {rpu: %d, msgSize: 20}}}
    - {name: map, udf: {builtin: {name: cat}}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: map, chain: false}
    - {from: map, to: out}
"""
LIMIT_S = 60.0
_POLL_S = 0.01


async def mark_of(run: PipelineRun, vertex: str) -> mark_pb2.Mark:
    marks = {lane.vertex: mark for lane, mark in (await run.marks()).items()}
    return marks.get(vertex, mark_pb2.Mark())


async def read_past(run: PipelineRun, sequence: int, task: asyncio.Task[None]) -> None:
    """Wait until the map has committed that it has read a frame behind `sequence`."""
    async with asyncio.timeout(LIMIT_S):
        while newest((await mark_of(run, "map")).read) <= sequence:
            if task.done():
                task.result()
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def running(run: PipelineRun) -> AsyncIterator[asyncio.Task[None]]:
    """The pipeline runs inside, and is killed on leaving."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run.run(timeout_s=LIMIT_S))
        yield task
        task.cancel()


async def written_past(run: PipelineRun, sequence: int) -> None:
    """Have the source alone write, until what it wrote last comes after `sequence`."""
    async with (
        asyncio.timeout(LIMIT_S),
        open_vertex(run.config("in"), SystemClock()) as source,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(source.run())
        async with open_connection(run.server.access) as connection:
            while (await connection.api("STREAM.INFO.p-in"))["state"]["last_seq"] <= sequence:  # noqa: ASYNC110  # a broker has no event for it
                await asyncio.sleep(_POLL_S)
        source.stop()


async def once(directory: Path, rng: random.Random, number: int) -> str:
    """What came of one time."""
    slow, otherwise_too = number % 2 == 0, number % 4 < 2
    path = directory / "pipeline.yaml"
    path.write_text(PIPELINE % rng.choice((500, 2000, 20_000)))
    async with open_pipeline(path, directory / "broker") as run:
        async with running(run) as task:
            await read_past(run, rng.choice((3, 8, 20)), task)
        await run.server.kill()
        streams = run.server.store_dir / "jetstream" / "millstream" / "streams"
        names = ["p-in", "KV_p-in-OT"] if otherwise_too else ["p-in"]
        for name in names:
            shutil.copytree(streams / name, directory / "saved" / name)
        await run.server.start()
        saved = newest((await mark_of(run, "map")).read)
        async with running(run.again()) as task:
            await read_past(run, saved + rng.choice((1, 5, 30)), task)
        await run.server.kill()
        for name in names:
            shutil.rmtree(streams / name)
            shutil.copytree(directory / "saved" / name, streams / name)
        await run.server.start()
        before = await mark_of(run, "map")
        try:
            if slow:
                await written_past(run, newest(before.read) + 5)
            await run.again().run(timeout_s=LIMIT_S / 4)
        except (DamageError, BaseExceptionGroup, TimeoutError) as error:
            damage = error.subgroup(DamageError) if isinstance(error, BaseExceptionGroup) else error
            if not isinstance(damage, DamageError | BaseExceptionGroup):
                return f"not noticed: {error!r}"
        after = await mark_of(run, "map")
        if (after.sequence, after.record_index, after.account) != (
            before.sequence,
            before.record_index,
            before.account,
        ):
            return "noticed after records were used"
        who = "its reader" if otherwise_too else "its reader, or what was published"
        return f"noticed by {who}; {'slow' if slow else 'fast'} reader"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rng = random.Random(arguments.seed)
    outcomes: Counter[str] = Counter()
    for number in range(arguments.times):
        with tempfile.TemporaryDirectory(prefix="set-back-") as name:
            outcome = asyncio.run(once(Path(name), rng, number))
        outcomes[outcome] += 1
        print(f"{number + 1}: {outcome}", file=sys.stderr)
    noticed = sum(count for text, count in outcomes.items() if text.startswith("noticed by"))
    if arguments.json:
        print(json.dumps({"times": arguments.times, "noticed": noticed, "outcomes": outcomes}))
    else:
        print(f"noticed {noticed} of {arguments.times} times before a record was used")
        for text, count in sorted(outcomes.items()):
            print(f"  {count} x {text}")
    return 0 if noticed == arguments.times else 1


if __name__ == "__main__":
    sys.exit(main())
