"""A worker: a process that runs one or more replicas of vertices: `python -m millstream_worker --help`.

The exit code is 0 if all lanes have ended, or were finished after SIGTERM. Otherwise it is the code of the error that
ended the worker (`millstream/errors.py`); this error is also the last one in its log.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import uvloop

from millstream import arrow_memory, codes
from millstream.audit import named_file, spec_digest, write_entry
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access, Technology
from millstream.clock import SystemClock
from millstream.descriptors import reopen_closed
from millstream.die_with_parent import forbid_core_files
from millstream.errors import UserError
from millstream.garbage import freeze_what_stays
from millstream.health import HEARTBEAT_VARIABLE, start_heartbeat
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan import resolved
from millstream.plan.resolved import ResolvedPipeline
from millstream.plurals import counted
from millstream.print_channel import print_through_channel
from millstream.record import ReplicaId
from millstream.telemetry.logging import configure_logging
from millstream.udf.sources import OnChange
from millstream_udf import freed_memory
from millstream_worker.ending import report
from millstream_worker.programs import Development
from millstream_worker.worker import Worker, WorkerConfig, open_worker

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run replicas until they have ended. Returns the exit code."""
    reopen_closed()
    forbid_core_files()
    options = _parser().parse_args(arguments)
    print_through_channel()
    configure_logging("", options.vertex or "", options.replica, level=options.log_level)
    try:
        config = _config(options)
        # A worker with a single replica logs under the name of that replica.
        only = config.replicas[0] if len(config.replicas) == 1 else ReplicaId("", 0)
        configure_logging(config.resolved.pipeline.name, only.vertex, only.number, level=options.log_level)
        if HEARTBEAT_VARIABLE not in os.environ:
            _note(config, options.pipeline)
        freed_memory.keep()
        arrow_memory.use_the_heap()
        freeze_what_stays()
        return uvloop.run(_run(config, takes_orders=options.orders))
    except Exception as error:  # noqa: BLE001  # every failure is reported in the log
        return report(error)


def _note(config: WorkerConfig, file: Path) -> None:
    """Record a start that no runner has recorded: in the log, and in the audit file that the environment names.

    In a container, nothing else outlives the process.
    """
    pipeline = config.resolved.pipeline.name
    digest = spec_digest(file.read_text(encoding="utf-8"))
    audit = named_file()
    for replica, access in config.access.items():
        log.info("%s of pipeline %s (spec %s) was started by user %d", replica, pipeline, digest, os.getuid())
        if audit is not None:
            of_it = {"pipeline": pipeline, "spec": digest, "replica": replica.name}
            write_entry(audit, "vertex", **of_it, broker=access.place, access=access.identity)


def _config(options: argparse.Namespace) -> WorkerConfig:
    try:
        text = options.pipeline.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            codes.RESOLVED_PIPELINE, f"--pipeline: the resolved pipeline {options.pipeline} cannot be read: {error}"
        ) from error
    pipeline = resolved.load(text)
    technology = technology_of(pipeline.pipeline)
    return WorkerConfig(
        resolved=pipeline,
        access={replica: _access(options, replica, technology) for replica in _replicas(options, pipeline)},
        durability=DurabilityLevel(options.durability),
        metrics_port=options.metrics_port,
        metrics_host=options.metrics_host,
        windows_dir=options.windows_dir,
        states_dir=options.states_dir,
        spark=options.spark,
        hidden=_hidden(options, technology),
        development=Development(OnChange(options.on_change), dict(map(_debugged, options.debug))),
    )


def _replicas(options: argparse.Namespace, pipeline: ResolvedPipeline) -> Sequence[ReplicaId]:
    """The replicas that the worker runs."""
    if options.vertex is not None:
        return [_known(pipeline, ReplicaId(options.vertex, options.replica), "--vertex", "--replica")]
    found: list[ReplicaId] = []
    for name in options.replicas:
        vertex, _, number = name.rpartition("-")
        if not number.isdecimal():
            raise UserError(
                codes.NOT_IN_PIPELINE,
                f"--replicas: {name!r} is not the name of a replica; names are <vertex>-<number>, such as map-0",
            )
        found.append(_known(pipeline, ReplicaId(vertex, int(number)), "--replicas", "--replicas"))
    if len(set(found)) < len(found):
        raise UserError(codes.OPTION_VALUE, f"--replicas: a replica is named twice: {' '.join(options.replicas)}")
    return found


def _debugged(text: str) -> tuple[str, int]:
    vertex, _, port = text.rpartition(":")
    return vertex, int(port)


def _known(pipeline: ResolvedPipeline, replica: ReplicaId, of_vertex: str, of_number: str) -> ReplicaId:
    """Return the replica if the pipeline has it. Otherwise raise an error that names the option to change."""
    vertices = {vertex.name: vertex for vertex in pipeline.graph.vertices}
    vertex = vertices.get(replica.vertex)
    name = pipeline.pipeline.name
    if vertex is None:
        raise UserError(
            codes.NOT_IN_PIPELINE,
            f"{of_vertex}: pipeline {name} has no vertex {replica.vertex}; it has {', '.join(vertices)}",
        )
    head = pipeline.graph.head(vertex.name)
    if head != vertex.name:
        raise UserError(
            codes.NOT_IN_PIPELINE,
            f"{of_vertex}: vertex {vertex.name} of pipeline {name} follows {head} in a chain, so it has no replicas "
            f"itself; it runs in the replicas of {head}",
        )
    if not 0 <= replica.number < vertex.replicas:
        raise UserError(
            codes.NOT_IN_PIPELINE,
            f"{of_number}: vertex {vertex.name} of pipeline {name} has {counted(vertex.replicas, 'replica')}, "
            f"numbered from 0; there is no replica {replica.number}",
        )
    return replica


def _access(options: argparse.Namespace, replica: ReplicaId, technology: Technology) -> Access:
    """The identity of a replica at the broker. If a directory is given, each vertex has its own user."""
    return technology.load_access(_access_file(options.broker_access, replica.vertex), options.broker)


def _access_file(given: Path | None, vertex: str) -> Path | None:
    return given / f"{vertex}.yaml" if given is not None and given.is_dir() else given


def _hidden(options: argparse.Namespace, technology: Technology) -> tuple[Path, ...]:
    """The files given to this process that no function may see in a sandbox."""
    windows, states, access = options.windows_dir, options.states_dir, options.broker_access
    broker: Sequence[Path] = ()
    if access is not None:
        broker = [access] if access.is_dir() else technology.secret_files(access)
    if windows is not None and options.pipeline.absolute().parent == windows.absolute().parent:
        # Both are in the data directory of a run, which also has the broker's store and the logs.
        return (windows.parent, *broker)
    return (options.pipeline, *(path for path in (windows, states) if path is not None), *broker)


async def _run(config: WorkerConfig, *, takes_orders: bool) -> int:
    loop = asyncio.get_running_loop()
    say = start_heartbeat(loop)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Ctrl-C in a terminal reaches the whole group; the runner decides when a worker stops.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    vertices = [config.resolved.graph.vertex(replica.vertex) for replica in config.replicas]
    if any(vertex.group_by is not None for vertex in vertices):
        _forgo_pandas()

    async with open_worker(config, SystemClock(), say=say) as worker, asyncio.TaskGroup() as group:

        async def stop() -> None:
            await stopped.wait()
            worker.stop()

        waiting = [group.create_task(stop(), name="stop")]
        if takes_orders:
            waiting.append(group.create_task(_obey(worker, config.replicas), name="orders"))
        code = await worker.run()
        for task in waiting:
            task.cancel()
    return code


async def _obey(worker: Worker, replicas: Sequence[ReplicaId]) -> None:
    """Read orders from standard input until it is closed: `stop NAME` stops a replica."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        # No orders can arrive: the process has the command line of a worker that takes orders, but no pipe.
        return
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        while line := await reader.readline():
            order, _, name = line.decode().strip().partition(" ")
            for replica in replicas:
                if order == "stop" and replica.name == name:
                    worker.stop(replica)
    finally:
        transport.close()


def _forgo_pandas() -> None:
    """Keep Arrow from importing pandas: the process of a reduce runs no user code that could need it."""
    # A missing package is reported where it is needed.
    with suppress(ModuleNotFoundError):
        from millstream_reduce.without_pandas import forgo_pandas

        forgo_pandas()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millstream_worker", description=__doc__)
    parser.add_argument("--pipeline", type=Path, required=True, help="the resolved pipeline, as JSON")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--vertex", help="the one vertex to run a replica of; --replica says which replica")
    what.add_argument(
        "--replicas",
        nargs="+",
        metavar="NAME",
        help="replicas to run, of any vertices: <vertex>-<number>, such as map-0",
    )
    parser.add_argument("--replica", type=int, default=0, help="number of the replica of --vertex (default: 0)")
    parser.add_argument("--broker", required=True, help="URL of the broker, without user or password")
    parser.add_argument(
        "--broker-access",
        type=Path,
        help="file with the broker's user and certificates; or a directory with such a file for each vertex, "
        "<vertex>.yaml",
    )
    parser.add_argument(
        "--durability",
        choices=[level.value for level in DurabilityLevel],
        default=DurabilityLevel.FSYNC.value,
        help="what a commit must survive; `unverified` takes the broker as it is (default: fsync)",
    )
    parser.add_argument("--spark", help="gRPC address of the Spark driver that computes windows")
    parser.add_argument("--windows-dir", type=Path, help="where a reduce keeps the records of its open windows")
    parser.add_argument("--states-dir", type=Path, help="where functions remember something on disk (`store: disk`)")
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="port of /metrics, /livez and /readyz (default: 0, none)"
    )
    parser.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        help="address of these endpoints; 0.0.0.0 for all interfaces (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--orders",
        action="store_true",
        help="read commands from standard input, one per line: `stop NAME` stops a replica",
    )
    parser.add_argument(
        "--on-change",
        choices=[one.value for one in OnChange],
        default=OnChange.IGNORE.value,
        help="what to do when a file of a function changes (default: ignore)",
    )
    parser.add_argument(
        "--debug",
        action="append",
        default=[],
        metavar="VERTEX:PORT",
        help="let the function of that vertex wait for a debugger at that port; replica n uses the n-th port after it",
    )
    parser.add_argument(
        "--log-level", type=str.upper, choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], default="INFO"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
