"""The Spark driver of a pipeline, as a process: `python -m millstream_reduce.spark.driver --help`.

    start Spark ─► a first job ─► serve ─► (while idle) more jobs to warm up ─► SIGTERM ─► finish ─► end

It ends when Spark does: its parent restarts it, and its clients ask again. Exit code 0: after SIGTERM. Otherwise the
code of the error that ended it (`millstream/errors.py`), which is also the last line of its log. If a signal from
outside has ended the JVM, or the JVM hung and was killed, the driver ends itself by the same signal.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import uvloop

from millstream import arrow_memory, codes
from millstream.background import beside, open_tasks
from millstream.die_with_parent import forbid_core_files
from millstream.errors import InfrastructureError, MillstreamError, leaves
from millstream.health import start_heartbeat
from millstream.telemetry.logging import configure_logging
from millstream_reduce.spark.jvm import SparkEndedError
from millstream_reduce.spark.session import SessionLostError, open_session
from millstream_reduce.spark.settings import TOKEN_VARIABLE, SparkSettings, check_address, settings_of

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 20.0
"""Time from SIGTERM until unfinished requests are aborted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a driver until it is asked to stop. Returns the exit code."""
    begun_s = time.monotonic()
    forbid_core_files()
    options = _parser().parse_args(arguments)
    configure_logging(options.pipeline, "spark", level=options.log_level)
    # Spark's Python workers inherit it.
    arrow_memory.use_the_heap()
    try:
        return uvloop.run(_serve(_settings(options), options.address, begun_s))
    except (MillstreamError, BaseExceptionGroup) as error:
        return _report(error)


def _settings(options: argparse.Namespace) -> SparkSettings:
    file: Path = options.settings or options.resolved
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InfrastructureError(
            codes.CANNOT_READ, f"the settings of Spark, {file}, cannot be read: {error}"
        ) from error
    if options.settings is not None:
        return SparkSettings.from_json(text)
    # The code that reads a pipeline takes time to import, and a runner has already read it.
    from millstream.plan import resolved

    found = resolved.load(text)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="millstream-spark-"))
    return settings_of(found.pipeline, found.base_dir, directory)


async def _serve(settings: SparkSettings, address: str, begun_s: float) -> int:
    token = os.environ.get(TOKEN_VARIABLE, "")
    check_address(address, token)
    stopped, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    start_heartbeat(loop)
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Ctrl-C in a terminal reaches the whole group; the runner decides when the driver stops.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    async with open_tasks() as tasks:
        serving = tasks.create_task(_open_and_serve(settings, address, token, begun_s, ready, stopped), name="serve")
        stopping = tasks.create_task(stopped.wait(), name="stop")
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set():
            await asyncio.wait((serving,), timeout=_STOP_TIMEOUT_S)
        serving.cancel()
        stopping.cancel()
    return 0


async def _open_and_serve(
    settings: SparkSettings, address: str, token: str, begun_s: float, ready: asyncio.Event, stopped: asyncio.Event
) -> None:
    # The JVM takes longest to start, so it is started first; what this process needs is imported meanwhile.
    started = asyncio.Event()
    async with (
        beside(_import_serving(settings, started), "imports") as importing,
        open_session(settings, on_started=started.set) as session,
    ):
        serving = await importing
        await serving.serve(session, settings.directory, address, token, begun_s, ready, stopped)


async def _import_serving(settings: SparkSettings, after: asyncio.Event) -> ModuleType:
    await after.wait()
    return await asyncio.to_thread(_imported, with_pandas=settings.remote is not None)


def _imported(*, with_pandas: bool) -> ModuleType:
    """`with_pandas`: the client of Spark Connect needs it."""
    serving = importlib.import_module("millstream_reduce.spark.serving")
    if not with_pandas:
        importlib.import_module("millstream_reduce.without_pandas").forgo_pandas()
    return serving


def _report(error: BaseException) -> int:
    """Log what ended the process, and return the exit code."""
    errors = [error for error in leaves(error) if not isinstance(error, asyncio.CancelledError)]
    ours = [error for error in errors if isinstance(error, MillstreamError)]
    if not ours:
        log.error("defect: %r", errors[0], exc_info=errors[0], extra={"code": codes.DEFECT.id})
        return MillstreamError.exit_code
    # The loss of Spark explains everything else.
    first = next((error for error in ours if isinstance(error, SessionLostError)), ours[0])
    log.error("%s", first)
    if isinstance(first, SparkEndedError) and first.killed_by:
        # The JVM was killed from outside, and the parent has to treat this process in the same way.
        return -first.killed_by
    return first.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millstream_reduce.spark.driver", description=__doc__)
    parser.add_argument(
        "--address", required=True, help=f"where to listen: unix:/path, or host:port with a token in {TOKEN_VARIABLE}"
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--resolved", type=Path, help="the resolved pipeline, as `millstream compile` writes it")
    given.add_argument("--settings", type=Path, help="a file as `SparkSettings.to_json` writes it")
    parser.add_argument(
        "--directory",
        type=Path,
        help="with --resolved, directory for temporary files; its contents are removed (default: a new one)",
    )
    parser.add_argument("--pipeline", default="", help="its name, for the log")
    parser.add_argument("--log-level", default="INFO")
    return parser


def _leave(exit_code: int) -> NoReturn:
    """End at once: a thread that still waits for a lost Spark would keep the process alive forever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if exit_code < 0:
        with suppress(OSError):
            # It cannot be set for SIGKILL, and need not be.
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)


if __name__ == "__main__":
    _leave(main())
