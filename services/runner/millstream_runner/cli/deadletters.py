"""`millstream deadletters`: lists the records that a pipeline has given up on, and replays them.

It reads the envelopes that file sinks have stored, or, with `--stored`, those that wait in the buffers before sinks.
`replay` starts the broker of a pipeline that is not running, and commits the records into the buffers they came from
(`millstream_vertex.replay`).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from millstream import codes
from millstream.buffers.placed import placed
from millstream.clock import SystemClock
from millstream.dead_letter import Envelope
from millstream.errors import UserError
from millstream.files import append_private
from millstream.frame import partition_of
from millstream.json_parser import parse_json
from millstream.ledger.protocol import DurabilityLevel
from millstream.nearest import did_you_mean
from millstream.plan import resolved
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream.printable import in_line
from millstream.record import BufferId, Record
from millstream.spec.graph import Graph
from millstream.spec.models import Sink
from millstream_connectors.file.settings import FileSink
from millstream_runner.cli.answer import answer
from millstream_runner.cli.envelopes import FoundEnvelope, read_buffers, read_files
from millstream_runner.cli.place import directory_of, is_pipeline_file
from millstream_runner.cli.records import check_buffered
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.processes import is_alive
from millstream_runner.local.stored import open_run, open_stored_buffer
from millstream_vertex.replay import Replay, ReplayRecord, ReplayResult

_REASON_CHARACTERS_MAX = 100


def run(arguments: argparse.Namespace) -> int:
    arguments.of = None
    if arguments.files and is_pipeline_file(arguments.files[0]):
        arguments.of = arguments.files.pop(0)
    if arguments.stored and arguments.files:
        raise UserError(
            codes.OPTIONS_CONFLICT,
            f"--stored reads the buffers of the pipeline, but {arguments.files[0]} is a file: give one or the other",
        )
    if arguments.action == "list" and arguments.files:
        return _list(arguments, _wanted(arguments, read_files(arguments.files)), frozenset())
    directory = directory_of(arguments)
    pipeline = resolved.load(directory.read_pipeline())
    if arguments.stored:
        read: Iterable[FoundEnvelope] = asyncio.run(_waiting(directory, pipeline.plan))
    else:
        read = read_files(arguments.files or stored_files(pipeline.graph, pipeline.base_dir))
    found = _wanted(arguments, read)
    if arguments.action == "list":
        return _list(arguments, found, _replayed(directory))
    return _replay(arguments, directory, pipeline.plan, list(found))


def stored_files(graph: Graph, base_dir: Path) -> list[Path]:
    """The directories of the file sinks that write envelopes of dead letters."""
    directories = []
    for vertex in graph.sinks:
        sink = vertex.sink
        if not isinstance(sink, Sink) or not isinstance(sink.settings, FileSink):
            continue
        edges = [edge for edge in graph.edges_in[vertex.name] if edge.kind == "deadLetter"]
        if any(graph.writes_envelopes(edge.name, sink) for edge in edges):
            directories.append(base_dir / sink.settings.path)
    if not directories:
        raise UserError(
            codes.NO_DEAD_LETTERS,
            f"pipeline {graph.pipeline.name} has no file sink that stores dead letters: name files, or use --stored "
            "for those that wait in buffers",
        )
    return sorted({path for path in directories if path.exists()})


async def _waiting(directory: DataDirectory, plan: Plan) -> list[FoundEnvelope]:
    audit.note(directory, "peek", edge="every dead-letter edge")
    async with open_run(directory, plan) as view:
        return [found async for found in read_buffers(view, plan)]


def _wanted(arguments: argparse.Namespace, found: Iterable[FoundEnvelope]) -> Iterator[FoundEnvelope]:
    return (item for item in found if _passes(arguments, item.envelope))


def _passes(arguments: argparse.Namespace, envelope: Envelope) -> bool:
    """Whether it is a dead letter, which names its vertex, and passes the filters."""
    return bool(
        envelope.vertex
        and (not arguments.vertex or envelope.vertex == arguments.vertex)
        and (not arguments.reason or arguments.reason in envelope.reason)
        and (not arguments.id or envelope.id in arguments.id)
    )


def _replayed(directory: DataDirectory) -> frozenset[str]:
    """The dead letters that were replayed."""
    try:
        return frozenset(directory.replayed.read_text(encoding="utf-8").split("\n"))
    except FileNotFoundError:
        return frozenset()


def _list(arguments: argparse.Namespace, found: Iterator[FoundEnvelope], replayed: Collection[str]) -> int:
    if arguments.json:
        for item in found:
            facts = {**parse_json(item.line), "place": item.place, "replayed": identity_of(item) in replayed}
            print(json.dumps(facts, ensure_ascii=False))
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    done = 0
    for item in found:
        counts[item.envelope.vertex, item.envelope.reason] += 1
        done += identity_of(item) in replayed
    for (vertex, reason), count in counts.most_common():
        short = reason if len(reason) <= _REASON_CHARACTERS_MAX else f"{reason[: _REASON_CHARACTERS_MAX - 3]}..."
        print(f"{count:>8}  {in_line(vertex):<16}  {in_line(short)}")
    print(counted(counts.total(), "dead letter") + (f", {done:,} of them replayed" if done else ""))
    return 0


def _replay(arguments: argparse.Namespace, directory: DataDirectory, plan: Plan, found: Sequence[FoundEnvelope]) -> int:
    runtime = directory.read_runtime()
    if runtime is not None and is_alive(runtime.runner):
        raise UserError(
            codes.PIPELINE_RUNS,
            f"pipeline {plan.pipeline.name} is running (process {runtime.runner.pid}): drain it with Ctrl-C, "
            "replay, and run it again",
        )
    returned: list[ReplayRecord] = []
    refused: Counter[str] = Counter()
    for item in found:
        try:
            buffer = target_of(plan.graph, item.envelope, arguments.to)
        except ValueError as error:
            refused[str(error)] += 1
            continue
        returned.append(ReplayRecord(identity_of(item), buffer, _record_of(item)))
    audit.note(directory, "replay", records=len(returned), to=arguments.to)
    done = asyncio.run(_put_back(directory, plan, returned)) if returned else ReplayResult()
    if returned:
        with append_private(directory.replayed) as file:
            file.write("".join(f"{one.identity}\n" for one in returned).encode())
    facts = {
        "put_back": done.records,
        "repeated": done.repeated,
        "opened_again": [str(lane) for lane in done.reopened],
        "not_put_back": [{"reason": reason, "count": count} for reason, count in refused.most_common()],
    }
    lines = [
        f"{done.records} replayed, {done.repeated} skipped because they were replayed before",
        *(f"reopened: {lane}" for lane in done.reopened),
        *(f"{count} not replayed: {in_line(reason)}" for reason, count in refused.most_common()),
    ]
    if done.records or done.reopened:
        lines.append(
            "now run the pipeline: it reads the replayed records before the other records that wait in the same buffers"
        )
    answer(arguments, facts, lines)
    return UserError.exit_code if refused else 0


async def _put_back(directory: DataDirectory, plan: Plan, returned: Sequence[ReplayRecord]) -> ReplayResult:
    async with open_stored_buffer(directory, plan, "replay", require=DurabilityLevel.FSYNC) as buffer:
        return await Replay(plan, placed(buffer, plan).broker, buffer.stores, SystemClock()).put_back(returned)


def target_of(graph: Graph, envelope: Envelope, to: str | None) -> BufferId:
    """The buffer to which a dead letter is returned: the one it was read from, or one of the vertex `to`.

    Raises `ValueError` with the reason if it cannot be returned.
    """
    if to is not None:
        edges = [edge for edge in graph.edges_in.get(to, ()) if edge.kind == "data"]
        if not edges:
            meant = did_you_mean(to, graph.edges_in)
            raise UserError(
                codes.NOT_IN_PIPELINE,
                f"pipeline {graph.pipeline.name} has no vertex {to!r} that reads a data edge{meant}",
            )
        check_buffered(graph, edges[0])
        partitions = graph.vertex(to).partitions
        keys = [part.encode() for part in envelope.keys]
        return BufferId(edges[0].name, partition_of(keys, partitions) if keys else 0)
    vertex, *rest = envelope.position.split("/")
    kind = next((step.definition for step in graph.vertices if step.name == envelope.vertex), None)
    if kind is not None and not kind.has_input:
        raise ValueError(f"{envelope.vertex} is a {kind.name} and reads no buffer; name a vertex with --to")
    if kind is not None and kind.has_windows:
        raise ValueError(f"it describes a window of {envelope.vertex}, whose records are no longer in any buffer")
    into = graph.chained_into(vertex) if vertex in graph.edges_in else None
    if into is not None:
        raise ValueError(
            f"{vertex} follows {into.from_} in a chain, and edge {into.name} has no buffer; name a vertex that "
            "reads a buffer with --to"
        )
    names = {edge.name for edge in graph.edges_in.get(vertex, ())}
    if len(rest) != 4 or rest[0] not in names or not 0 <= int(rest[1]) < graph.vertex(vertex).partitions:
        raise ValueError(f"this pipeline has no buffer {envelope.position!r}; name a vertex with --to")
    return BufferId(rest[0], int(rest[1]))


def identity_of(item: FoundEnvelope) -> str:
    """An id that only this failure has: runs have ids, and a run uses a position once."""
    envelope = item.envelope
    if envelope.run and envelope.position:
        return f"replay/{envelope.run}/{envelope.position}"
    # A dead letter of a source has no position: the same input, failing for the same reason, counts once.
    return f"replay/{hashlib.sha256(item.line).hexdigest()}"


def _record_of(item: FoundEnvelope) -> Record:
    envelope = item.envelope
    return Record(
        envelope.value, envelope.event_time_us, envelope.keys, envelope.headers, envelope.id or identity_of(item)
    )
