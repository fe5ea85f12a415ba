"""Random pipelines whose vertices have two inputs each, disturbed while they run, and what must be in every sink.

    seed ─► sources, maps, reduces, sinks, edges ─► chunks of records, a disturbance after each ─► sinks
                                                                  the same records ─► oracle ─────► compared

A record is known by its id and the path it took; all sinks are compared as multisets of both, never as totals. Maps
decide by the id alone, so that the oracle can repeat them. Which records are late is up to the run: each reduce has a
sink of its own, `audit-<reduce>`, over its results and its late records together. They have to be that reduce's input,
each record once; its contents are then what every other vertex must have received from it.
"""

from __future__ import annotations

import asyncio
import csv
import json
import random
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet

from millstream.errors import FencedError, InfrastructureError, RetryLaterError
from tests.contract.sinks.http_target import HttpTarget, open_http_target
from tests.mesh.reducing import assert_balanced, until
from tests.support.pipelines import PipelineRun, open_pipeline

LIMIT_S = 400.0
"""For one pipeline, on a machine that is busy with others."""
BASE_MS = 1_700_000_000_000
LENGTH_MS = 10_000
"""Of fixed windows."""
CHUNKS = 3
END_MS = BASE_MS + 1_000_000
"""Of the last records."""
LAST = "last"
"""In their ids. Their windows never close."""
FUNCTIONS = """\
import json
import zlib
from pathlib import Path

import millstream_udf as udf


def on_its_way(record, name, suffix=""):
    row = json.loads(record.value)
    return json.dumps({**row, "id": row["id"] + suffix, "path": row["path"] + name + "."})


def made(name):
    kind, _ = name.split("_")

    def process(record):
        number = zlib.crc32(json.loads(record.value)["id"].encode())
        if kind == "fan":
            return [udf.Message(on_its_way(record, name, f"/{copy}")) for copy in range(2 if number % 3 else 0)]
        if kind == "dead" and number % 5 == 0:
            raise udf.DeadLetter("hopeless")
        return udf.Message(on_its_way(record, name), tags=["odd" if number % 2 else "even"])

    return udf.map(process)


for name in NAMES:
    globals()[name] = made(name)


@udf.sink
def keep(record):
    row = {"id": record.id, "value": json.loads(record.value)}
    with Path(__file__).with_name("kept.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\\n")
"""
QUERY = (
    "SELECT concat('%s@', unix_millis(window_start), '@', key) AS id, '' AS path,"
    " concat_ws(' ', sort_array(collect_list(concat(value.id, '|', value.path)))) AS ids"
    " FROM window GROUP BY key, window_start"
)
ROLLING = "rolling: {maxRecords: 50, maxAge: 100ms}"
COLUMNS = "columns: [{name: id, type: string}, {name: path, type: string}, {name: ids, type: string}]"
SINKS = ("jsonl", "csv", "parquet", "http", "keep")
MAPS = ("pass", "fan", "dead", "tags")
DISTURBANCES = ("die", "successor", "broker", "functions")


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """A record as its sink has it."""

    id: str
    path: str
    """The maps it went through, or the one that made it."""
    ids: str = ""
    """Of a window's result: id and path of every record in it."""


@dataclass(frozen=True, slots=True)
class Edge:
    begin: str
    end: str
    kind: str = "forward"
    tag: str = ""
    """Only records with this tag; empty: all."""

    @property
    def yaml(self) -> str:
        kind = "" if self.kind == "forward" else f", kind: {self.kind}"
        tags = f", conditions: {{tags: {{values: [{self.tag}]}}}}" if self.tag else ""
        return f"{{from: {self.begin}, to: {self.end}{kind}{tags}}}"


@dataclass(slots=True)
class Shape:
    """A pipeline."""

    sources: Sequence[str]
    maps: list[str] = field(default_factory=list)
    reduces: dict[str, str] = field(default_factory=dict)
    """Their windows."""
    sinks: dict[str, str] = field(default_factory=dict)
    """Their kinds."""
    edges: list[Edge] = field(default_factory=list)
    partitions: dict[str, int] = field(default_factory=dict)

    def into(self, vertex: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.end == vertex]

    @property
    def order(self) -> list[str]:
        """Every vertex behind those it reads from; a map may read what a reduce gives."""
        left, order = [*self.maps, *self.reduces, *self.sinks], list(self.sources)
        while left:
            ready = [name for name in left if all(edge.begin in order for edge in self.into(name))]
            order += ready
            left = [name for name in left if name not in ready]
        return order


def drawn(rng: random.Random, *, windows: bool) -> Shape:
    """A pipeline made up; `windows`: it has a reduce."""
    shape = Shape(("a", "b"))
    before = list(shape.sources)
    for number in range(rng.randint(1, 3)):
        name = f"{rng.choice(MAPS)}_{number}"
        _join(rng, shape, before, name)
        shape.maps.append(name)
        before.append(name)
    if windows:
        window = rng.choice((f"fixed: {{length: {LENGTH_MS}ms}}", "session: {timeout: 2s}"))
        _join(rng, shape, before, "sum")
        shape.reduces["sum"] = window
        # The late edge beside the data edge, in a sink of its own, and perhaps in others.
        shape.sinks["audit-sum"] = "jsonl"
        shape.edges += [Edge("sum", "audit-sum"), Edge("sum", "audit-sum", "late")]
        before.append("sum")
        if rng.random() < 0.5:
            name = f"{rng.choice(MAPS)}_behind"
            shape.edges += [Edge("sum", name), _edge(rng, shape, rng.choice(before[:-1]), name)]
            if rng.random() < 0.5:
                shape.edges.append(Edge("sum", name, "late"))
            shape.maps.append(name)
            before.append(name)
    kinds = rng.sample(SINKS, rng.randint(1, 3))
    for kind in kinds:
        _join(rng, shape, before, kind)
        shape.sinks[kind] = kind
    for name in shape.maps:
        if name.startswith("dead"):
            # Dead letters go where data go, too.
            shape.edges.append(Edge(name, rng.choice(kinds), "deadLetter"))
    begun = {edge.begin for edge in shape.edges if edge.kind == "forward"}
    shape.edges += [_edge(rng, shape, name, rng.choice(kinds)) for name in before if name not in begun]
    for name in (*shape.maps, *shape.reduces, *shape.sinks):
        shape.partitions[name] = rng.choice((1, 2))
    return shape


def _join(rng: random.Random, shape: Shape, before: Sequence[str], name: str) -> None:
    """Two or three edges into a vertex."""
    for begin in rng.sample(before, min(len(before), rng.choice((2, 2, 3)))):
        shape.edges.append(_edge(rng, shape, begin, name))
        if begin in shape.reduces and rng.random() < 0.5:
            shape.edges.append(Edge(begin, name, "late"))


def _edge(rng: random.Random, shape: Shape, begin: str, end: str) -> Edge:
    return Edge(begin, end, tag=rng.choice(("", "even", "odd")) if begin.startswith("tags") else "")


class Experiment:
    """One seed."""

    def __init__(self, seed: int, directory: Path, *, windows: bool) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        self.shape = drawn(self._rng, windows=windows)
        self._given: dict[str, list[dict[str, Any]]] = {name: [] for name in self.shape.sources}
        self._target = HttpTarget()
        self.disturbed: list[str] = []
        self.late = 0
        """Records that were late for a reduce."""
        self._open = 0
        """Records in windows that stay open."""

    async def run(self, spark: str | None) -> list[str]:
        """What is wrong in the end."""
        directory = self._directory
        (directory / "functions.py").write_text(FUNCTIONS.replace("NAMES", repr(self.shape.maps)), encoding="utf-8")
        async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
            await stack.enter_async_context(open_http_target(self._target))
            path = self._write()
            self._grow(0)
            run = await stack.enter_async_context(open_pipeline(path, directory / "broker", spark=spark))
            for chunk in range(1, CHUNKS):
                run = await self._disturbed(run, chunk)
            await self._finished(run)
        return list(self._differences())

    async def _finished(self, run: PipelineRun) -> None:
        """Close every window, and run until every sink has what it has to have, or too long."""
        self._given_in_the_end()
        task = asyncio.ensure_future(_supervised(run))
        try:
            for name in self.shape.reduces:
                await until(partial(self._closed, run, name), task, limit_s=LIMIT_S)
            self._given_too_late()
            with suppress(TimeoutError):
                await until(self._is_as_it_has_to_be, task, limit_s=LIMIT_S / 2)
            run.stop()
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])
        await assert_balanced(run, open_records=self._open)

    async def _closed(self, run: PipelineRun, name: str) -> bool:
        return await run.published(name) >= (END_MS - LENGTH_MS) * 1000

    async def _is_as_it_has_to_be(self) -> bool:
        begun_s = time.monotonic()
        wrong = list(self._differences())
        # The pipeline runs in the same event loop: it has to have most of the time.
        await asyncio.sleep(10 * (time.monotonic() - begun_s))
        return not wrong

    def _given_in_the_end(self) -> None:
        """A record of each source that is so new that all other windows close."""
        for name in self.shape.sources:
            self._give(name, [{"id": f"{name}-{LAST}", "path": "", "k": "z", "t": END_MS, "chunk": CHUNKS}])

    def _given_too_late(self) -> None:
        """Records of windows that are closed by now. Whether others were late is up to the run."""
        for name in self.shape.sources:
            rows = [
                {
                    "id": f"{name}-late-{number}",
                    "path": "",
                    "k": "xyz"[number % 3],
                    "t": BASE_MS + number,
                    "chunk": CHUNKS,
                }
                for number in range(6)
            ]
            self._give(name, rows)

    async def _disturbed(self, run: PipelineRun, chunk: int) -> PipelineRun:
        """Run for a while, give the next chunk, and disturb it. All vertices are gone at the end."""
        how = self._rng.choice(DISTURBANCES)
        self.disturbed.append(how)
        task = asyncio.ensure_future(_supervised(run))
        try:
            await self._read(run, chunk, self._rng.choice((0.1, 0.6, 1.0)), task)
            self._grow(chunk)
            match how:
                case "successor":
                    successor = run.again()
                    second = asyncio.ensure_future(_supervised(successor))
                    await asyncio.wait([task])
                    error = task.exception()
                    if not isinstance(error, ExceptionGroup) or error.split(FencedError)[1] is not None:
                        raise AssertionError(f"those who were replaced ended with {error!r}")
                    run, task = successor, second
                case "broker":
                    await run.server.kill()
                    await run.server.start()
                case "functions":
                    _kill_functions()
            if how != "die":
                await self._read(run, chunk + 1, self._rng.choice((0.3, 0.9)), task)
        finally:
            task.cancel()
            await asyncio.wait([task])
        return run.again()

    async def _read(self, run: PipelineRun, chunks: int, share: float, task: asyncio.Future[None]) -> None:
        """Wait until the sources have given that share of so many chunks."""
        wanted: float = share * sum(row["chunk"] < chunks for rows in self._given.values() for row in rows)

        async def reached() -> bool:
            return sum([(await run.account(name)).inputs for name in self.shape.sources]) >= wanted

        await until(reached, task, limit_s=LIMIT_S)

    def _grow(self, chunk: int) -> None:
        """More records for each source: a chunk is half a minute of event time later than the one before."""
        for name in self.shape.sources:
            rows = []
            for number in range(self._rng.choice((20, 80, 200))):
                back_ms = self._rng.choice((40_000, 70_000)) if chunk and self._rng.random() < 0.1 else 0
                time_ms = BASE_MS + chunk * 30_000 + number * 100 + self._rng.randrange(900) - back_ms
                key = self._rng.choice("xyz")
                identity = f"{name}{chunk}-{number}"
                rows.append({"id": identity, "path": "", "k": key, "t": time_ms, "chunk": chunk})
            self._give(name, rows)

    def _give(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        self._given[name] += rows
        with (self._directory / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def _write(self) -> Path:
        shape = self.shape
        vertices = [
            f"{{name: {name}, source: {{file: {{paths: ['{name}.jsonl'], format: jsonl, follow: true}}"
            ", eventTime: {field: t, format: epoch_ms}, keys: [k]}}"
            for name in shape.sources
        ]
        vertices += [
            f"{{name: {_yaml(name)}, {self._lanes(name)}, udf: {{python: 'functions.py:{name}'}}}}"
            for name in shape.maps
        ]
        for name, window in shape.reduces.items():
            group_by = f"groupBy: {{window: {{{window}}}, keyed: true, onLate: edge}}"
            value = "value: {format: json, fields: 'id STRING, path STRING'}"
            query = json.dumps(QUERY % name)
            vertices.append(
                f"{{name: {name}, {self._lanes(name)}, udf: {{{group_by}, sql: {{query: {query}, {value}}}}}}}"
            )
        for name, kind in shape.sinks.items():
            vertices.append(
                f"{{name: {name}, {self._lanes(name)}, sink: {{envelope: false, {self._sink(name, kind)}}}}}"
            )
        lines = ["apiVersion: millstream.io/v1alpha1", "kind: Pipeline", "metadata: {name: p}", "spec:"]
        lines += ["  watermark: {maxDelay: 1s}", "  vertices:", *(f"    - {vertex}" for vertex in vertices), "  edges:"]
        lines += [f"    - {_yaml(edge.yaml)}" for edge in shape.edges]
        path = self._directory / "pipeline.yaml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def _lanes(self, name: str) -> str:
        return f"partitions: {self.shape.partitions[name]}"

    def _sink(self, name: str, kind: str) -> str:
        match kind:
            case "http":
                return f"http: {{url: '{self._target.url}', batch: {{maxRecords: 7}}}}"
            case "keep":
                return "udsink: {python: 'functions.py:keep'}"
            case "jsonl":
                return f"file: {{path: out-{name}, format: jsonl, {ROLLING}}}"
        return f"file: {{path: out-{name}, format: {kind}, {COLUMNS}, {ROLLING}}}"

    # What came out

    def _found(self, name: str, kind: str) -> Counter[Item]:
        if kind == "http":
            bodies = self._target.accepted().values()
            return Counter(_item(json.loads(line)) for body in bodies for line in body.splitlines())
        if kind == "keep":
            path = self._directory / "kept.jsonl"
            rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
            return Counter(_item(value) for value in {row["id"]: row["value"] for row in rows}.values())
        found: Counter[Item] = Counter()
        for file in sorted((self._directory / f"out-{name}").glob(f"*.{kind}")):
            if kind == "parquet":
                found.update(map(_item, pyarrow.parquet.read_table(file).to_pylist()))
            elif kind == "csv":
                found.update(map(_item, csv.DictReader(file.read_text().splitlines())))
            else:
                found.update(_item(json.loads(line)) for line in file.read_text().splitlines())
        return found

    # What has to

    def _differences(self) -> Iterator[str]:
        made: dict[tuple[str, str], Counter[Item]] = defaultdict(Counter)
        self.late = self._open = 0
        for name in self.shape.order:
            came: Counter[Item] = Counter()
            for edge in self.shape.into(name):
                items = made[edge.begin, edge.kind]
                came += Counter({item: n for item, n in items.items() if not edge.tag or edge.tag == _tag(item)})
            if name in self.shape.sources:
                made[name, "forward"] = Counter(map(_item, self._given[name]))
            elif name in self.shape.maps:
                made[name, "forward"], made[name, "deadLetter"] = _mapped(name, came)
            elif name in self.shape.reduces:
                results, late = _split(self._found(f"audit-{name}", "jsonl"), name)
                made[name, "forward"], made[name, "late"] = results, late
                self.late += late.total()
                self._open += (came - _closed_of(came)).total()
                yield from self._wrong_windows(name, came, results, late)
            else:
                found = self._found(name, self.shape.sinks[name])
                if found != came:
                    yield f"{name}: too many {_some(found - came)}, missing {_some(came - found)}"

    def _wrong_windows(
        self, name: str, came: Counter[Item], results: Counter[Item], late: Counter[Item]
    ) -> Iterator[str]:
        inside: Counter[Item] = Counter()
        times = {row["id"]: (row["t"], row["k"]) for rows in self._given.values() for row in rows}
        for result, count in results.items():
            if count > 1:
                yield f"{name}: {count} results of the window {result.id}"
            _, start, key = result.id.split("@")
            for text in result.ids.split(" "):
                record = Item(*text.split("|"))
                inside[record] += count
                time_ms, its_key = times[record.id.split("/")[0]]
                place = time_ms // LENGTH_MS * LENGTH_MS
                if its_key != key or (self.shape.reduces[name].startswith("fixed") and place != int(start)):
                    yield f"{name}: {record} is in the window {result.id}"
        both, came = inside + late, _closed_of(came)
        if both != came:
            yield f"{name}: too many {_some(both - came)}, missing {_some(came - both)}"


def _yaml(text: str) -> str:
    """Names of vertices have no underscore, and functions have no hyphen."""
    return text.replace("_", "-")


def _item(row: Mapping[str, Any]) -> Item:
    return Item(row["id"], row["path"] or "", row.get("ids") or "")


def _tag(item: Item) -> str:
    """That a map gave it, which looked at the id it had before: only such a map has conditions behind it."""
    return "odd" if zlib.crc32(item.id.encode()) % 2 else "even"


def _mapped(name: str, came: Counter[Item]) -> tuple[Counter[Item], Counter[Item]]:
    """What a map gives, and its dead letters."""
    kind = name.partition("_")[0]
    made: Counter[Item] = Counter()
    dead: Counter[Item] = Counter()
    for item, count in came.items():
        number = zlib.crc32(item.id.encode())
        path = f"{item.path}{name}."
        if kind == "fan":
            made.update({Item(f"{item.id}/{copy}", path, item.ids): count for copy in range(2 if number % 3 else 0)})
        elif kind == "dead" and number % 5 == 0:
            dead[item] += count
        else:
            made[Item(item.id, path, item.ids)] += count
    return made, dead


def _closed_of(came: Counter[Item]) -> Counter[Item]:
    """Without what is in windows that stay open."""
    return Counter({item: count for item, count in came.items() if not item.id.split("/")[0].endswith(LAST)})


def _split(found: Counter[Item], name: str) -> tuple[Counter[Item], Counter[Item]]:
    """Results, and late records."""
    results = Counter({item: count for item, count in found.items() if item.id.startswith(f"{name}@")})
    return results, found - results


def _some(items: Counter[Item]) -> str:
    return f"{items.total()} {sorted(items)[:3]}"


async def _supervised(run: PipelineRun) -> None:
    """Started again as its runner would do it, where a vertex ended because the broker did not answer."""
    while True:
        try:
            return await run.run(timeout_s=LIMIT_S)
        except ExceptionGroup as error:
            # Of an error and a cancellation that come at once, a group of tasks raises the error.
            task = asyncio.current_task()
            is_cancelled = task is not None and task.cancelling() > 0
            if is_cancelled or error.split((RetryLaterError, InfrastructureError))[1] is not None:
                raise


def _kill_functions() -> None:
    for process in psutil.Process().children(recursive=True):
        try:
            if any("millstream_udf" in word for word in process.cmdline()):
                process.kill()
        except psutil.NoSuchProcess:
            continue
