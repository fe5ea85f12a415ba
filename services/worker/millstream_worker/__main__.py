"""One replica of one vertex, as a process: `python -m millstream_worker --help`.

Exit code 0: its lanes have ended, or were finished after SIGTERM. Otherwise the code of the error that ended it
(`millstream/errors.py`), which is also the last line of its log.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import uvloop

from millstream.audit import named_file, spec_digest, write_entry
from millstream.buffers.jetstream.access_file import files_of, load_access
from millstream.clock import SystemClock
from millstream.errors import DamageError, FencedError, MillstreamError, UserError
from millstream.health import HEARTBEAT_VARIABLE, start_heartbeat
from millstream.ledger.protocol import DurabilityLevel
from millstream.limits import DRAIN_TIMEOUT_S
from millstream.priority import SOURCE_NICENESS, give_way
from millstream.spec import resolved
from millstream.telemetry.logging import configure_logging
from millstream_worker.assembly import open_vertex
from millstream_worker.surroundings import VertexConfig

log = logging.getLogger(__name__)

_OF_EXTRAS = {"numpy": "reduce", "pyspark": "reduce", "pyarrow": "arrow"}
"""Packages that only some vertices need, and the extra of Millstream that installs each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a vertex replica until it has ended. Returns the exit code."""
    options = _parser().parse_args(arguments)
    configure_logging("", options.vertex, options.replica, level=options.log_level)
    try:
        config = _config(options)
        configure_logging(config.resolved.pipeline.name, options.vertex, options.replica, level=options.log_level)
        if HEARTBEAT_VARIABLE not in os.environ:
            _note(config, options.pipeline)
        return uvloop.run(_run(config))
    except MillstreamError as error:
        log.error("%s", error)
        return error.exit_code
    except BaseExceptionGroup as group:
        return _report(group)
    except Exception as error:  # noqa: BLE001  # a failure is reported in the log, whatever it is
        return _report(BaseExceptionGroup("", [error]))


def _note(config: VertexConfig, file: Path) -> None:
    """Write down a start that no runner has written down: in the log, and in the audit file that the environment names.
    A container has no other place that outlives it."""
    pipeline, access = config.resolved.pipeline.name, config.broker
    digest = spec_digest(file.read_text(encoding="utf-8"))
    replica = f"{config.vertex}-{config.replica}"
    log.info("%s of pipeline %s (spec %s) is started by user %d", replica, pipeline, digest, os.getuid())
    audit = named_file()
    if audit is not None:
        of_it = {"pipeline": pipeline, "spec": digest, "replica": replica}
        write_entry(audit, "vertex", **of_it, broker=access.place, access=access.identity)


def _config(options: argparse.Namespace) -> VertexConfig:
    try:
        text = options.pipeline.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--pipeline: the resolved pipeline {options.pipeline} cannot be read: {error}") from error
    pipeline = resolved.load(text)
    vertices = {vertex.name: vertex for vertex in pipeline.graph.vertices}
    vertex = vertices.get(options.vertex)
    name = pipeline.pipeline.name
    if vertex is None:
        raise UserError(f"--vertex: pipeline {name} has no vertex {options.vertex}; it has {', '.join(vertices)}")
    if not 0 <= options.replica < vertex.replicas:
        raise UserError(
            f"--replica: vertex {vertex.name} of pipeline {name} has {vertex.replicas} replica(s), numbered from 0; "
            f"there is no replica {options.replica}"
        )
    return VertexConfig(
        resolved=pipeline,
        vertex=options.vertex,
        replica=options.replica,
        broker=load_access(options.nats_access, options.nats, options.monitor),
        durability=DurabilityLevel(options.durability),
        metrics_port=options.metrics_port,
        metrics_host=options.metrics_host,
        windows_dir=options.windows_dir,
        spark=options.spark,
        hidden=_hidden(options),
    )


def _hidden(options: argparse.Namespace) -> tuple[Path, ...]:
    """What this process was given and no function is to see in a sandbox."""
    windows = options.windows_dir
    broker = files_of(options.nats_access) if options.nats_access is not None else []
    if windows is not None and options.pipeline.absolute().parent == windows.absolute().parent:
        # Both lie in the data directory of a run, with the broker's store and the logs.
        return (windows.parent, *broker)
    return (options.pipeline, *([windows] if windows is not None else []), *broker)


async def _run(config: VertexConfig) -> int:
    loop = asyncio.get_running_loop()
    start_heartbeat(loop)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Ctrl-C in a terminal reaches the whole group; the runner decides when a vertex stops.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    vertex = config.resolved.graph.vertex(config.vertex)
    log.info("starting vertex %s of pipeline %s", vertex.name, config.resolved.pipeline.name)
    if vertex.group_by is not None:
        _forgo_pandas()
    async with open_vertex(config, SystemClock()) as process, asyncio.TaskGroup() as group:
        # Modules and all that was made for the whole run: a look at them would hold every record up for tens of
        # milliseconds, again and again, and find nothing.
        gc.freeze()
        if vertex.source is not None:
            # Not before it can do its work: on a busy machine a start at a tenth of the processor time takes a minute.
            give_way(SOURCE_NICENESS)
        running = group.create_task(process.run(), name="lanes")
        watching = group.create_task(stopped.wait(), name="stop")
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            log.info("stopping: finishing what is in flight")
            process.stop()
            await asyncio.wait((running,), timeout=DRAIN_TIMEOUT_S)
            if not running.done():
                log.warning("not finished in %.0f s: the rest is processed at the next start", DRAIN_TIMEOUT_S)
                running.cancel()
        watching.cancel()
    return 0


def _forgo_pandas() -> None:
    """A reduce uses Arrow, and no code of users' runs in its process."""
    # What is not installed is told where it is needed.
    with suppress(ModuleNotFoundError):
        from millstream_reduce.without_pandas import forgo_pandas

        forgo_pandas()


def _report(group: BaseExceptionGroup[BaseException]) -> int:
    """Log what ended the process, most telling first, and give the exit code.

    When one task fails the others are cancelled, and some fail in turn; one report is enough.
    """
    errors = sorted(_leaves(group), key=_telling)
    first = errors[0]
    if isinstance(first, MillstreamError):
        log.error("%s", first)
        return first.exit_code
    if isinstance(first, ModuleNotFoundError) and first.name in _OF_EXTRAS:
        log.error(
            "this vertex needs %s, which is not installed here: `pip install 'millstream[%s]'`, or use an image that "
            "has it",
            first.name,
            _OF_EXTRAS[first.name],
        )
        return UserError.exit_code
    log.error("defect: %r", first, exc_info=first)
    return MillstreamError.exit_code


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _telling(error: BaseException) -> int:
    """Who must act: us before the user, the user before the machine; being fenced explains itself."""
    if isinstance(error, FencedError):
        return 0
    if not isinstance(error, MillstreamError):
        return 1
    if isinstance(error, DamageError):
        return 2
    return 3 if isinstance(error, UserError) else 4


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millstream_worker", description=__doc__)
    parser.add_argument("--pipeline", type=Path, required=True, help="the resolved pipeline, as JSON")
    parser.add_argument("--vertex", required=True)
    parser.add_argument("--replica", type=int, default=0)
    parser.add_argument("--nats", required=True, help="URL of the broker, without user or password")
    parser.add_argument(
        "--nats-access", type=Path, help="file that says who connects to the broker, and which certificates count"
    )
    parser.add_argument(
        "--monitor", help="URL of its monitoring endpoint, for a broker that does not tell its durability over NATS"
    )
    parser.add_argument(
        "--durability",
        choices=[level.value for level in DurabilityLevel],
        default=DurabilityLevel.FSYNC.value,
        help="what a commit must survive; `unverified` takes the broker as it is (default: fsync)",
    )
    parser.add_argument("--spark", help="gRPC address of the Spark driver that computes windows")
    parser.add_argument("--windows-dir", type=Path, help="where a reduce keeps the records of its open windows")
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="port of /metrics, /livez and /readyz (default: 0, none)"
    )
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", help="address they listen on; 0.0.0.0 for all (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--log-level", type=str.upper, choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], default="INFO"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
