"""The embedded broker of a local run: a server process over the store in the data directory.

Above it: the runner. Below it: the server of the pipeline's technology. It has its own port on the loopback, remembered
from run to run, and keeps it when it is restarted, so that every client can reconnect. It answers only clients that
have the key of the run, which is created at its first start in a file that only its user can read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from millstream import codes, limits
from millstream.background import beside
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access, WriteFailure
from millstream.errors import InfrastructureError
from millstream.health import REST_S, Health, Patience
from millstream.ledger.protocol import DurabilityLevel
from millstream.lines import LastLines, text_of
from millstream.pauses import until_next
from millstream.plan.plan import Plan
from millstream.ports import free_ports
from millstream.processes import Process, Stop, open_process
from millstream_runner.local.directory import ProcessIdentity, write_text
from millstream_runner.local.policy import STEADY_S, ProcessEnding, restart_pauses
from millstream_runner.local.processes import identity_of

_log = logging.getLogger(__name__)

BROKER = "broker"
"""Name of the process, in logs and in `runtime.json`."""
WRITE_FAILURES_MAX = 10
"""Processes in a row that could not write, each within `STEADY_S` of its start, before giving up on the disk."""
STARTS_MAX = 10
"""Failed starts in a row before giving up on a broker that was ready before."""
_STOP_TIMEOUT_S = 10.0
"""Time from SIGTERM to SIGKILL. Every acknowledged write is in the store either way."""
_STOP_FOR_ROOM_TIMEOUT_S = 2.0
"""The same if the disk was full: a stream that could not be written may prevent the broker from exiting."""
_POLL_S = 0.005
_LINES_KEPT = 5
_FULL_BYTES = limits.MIB
"""A disk with less free space than this is full, because one message may be that large."""
ROOM_BYTES_MIN = 32 * limits.MIB
"""Free space at which a broker whose disk was full is restarted: a few commits of the largest size."""
_ROOM_POLL_S = 1.0


class EmbeddedBroker:
    """Runs the broker until it is asked to stop; `serve` is its only task."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        *,
        durability: DurabilityLevel,
        port: int | None,
        on_line: Callable[[bytes], None],
        on_started: Callable[[], None],
    ) -> None:
        """`port`: the port of the previous run, used again if it is free.

        `on_started` is called after every start, when the port and the process are known.
        """
        self._directory = directory
        self._server = technology_of(plan.pipeline).server(
            directory,
            durability=durability,
            port=port,
            buffers=sum(plan.vertex(edge.to).partitions for edge in plan.edges),
        )
        self._on_line = on_line
        self._on_started = on_started
        self._stop = asyncio.Event()
        self._write_failure: WriteFailure | None = None
        """Why the current process stores nothing more."""
        self._failed_write = ""
        """What the broker says of that."""
        self._failed_writes = 0
        """Processes in a row that were ended because a write had failed soon after their start."""
        self._is_renewed = False
        """Whether the broker was ended because it could not write."""
        self._last_lines = LastLines(_LINES_KEPT)
        self._first = True
        self.ready = asyncio.Event()
        """Set while the broker accepts connections."""
        self.identity: ProcessIdentity | None = None

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def access(self) -> Access:
        """How to connect to it."""
        return self._server.access

    def stop(self) -> None:
        """Ask `serve` to end the broker."""
        self._stop.set()

    async def serve(self) -> None:
        """Start the broker, restart it whenever it dies, and return after `stop`.

        Raises `InfrastructureError` if it repeatedly fails to start.
        """
        failures, pauses = 0, restart_pauses()
        while not self._stop.is_set():
            self._write_failure = None
            for file, text in self._server.prepare().items():
                write_text(self._directory / file, text, durable=False)
            command = self._server.command()
            if not command:
                await self._serve_files()
                return
            async with open_process(
                command,
                name=BROKER,
                stdout=self._take_lines,
                stderr=self._take_lines,
                environment={**os.environ, **self._server.environment},
                is_private=True,
            ) as child:
                self.identity = identity_of(child.pid)
                health = Health(child.pid, Patience(), report=partial(_log.warning, "the broker %s"), rest_s=REST_S)
                async with beside(child.kill_when_hung(health, self._ask), "health of the broker"):
                    if await self._until_ready(child):
                        failures = 0
                        if not self._failed_writes:
                            pauses.begin_again()
                        self._first = False
                        self.ready.set()
                        self._on_started()
                        await self._until_over(child)
                self.ready.clear()
                ending = ProcessEnding(await child.wait() if not child.running else 0, health.hung)
            self._server.ended(child.pid)
            if self._stop.is_set():
                return
            if self._is_renewed:
                self._is_renewed = False
                if self._failed_writes:
                    await pauses.wait(unless=self._stop)
                continue
            if not self._first and self._free_bytes() < _FULL_BYTES:
                # It exited because of the full disk, or was found hung and would not have recovered.
                await self._until_room()
                continue
            failures += 1
            if failures >= (2 if self._first else STARTS_MAX):
                said = self._last_lines.text() or "it wrote nothing"
                raise InfrastructureError(
                    codes.BROKER_NOT_STARTED, f"the broker {ending.text} and does not start: {said}"
                )
            _log.warning("the broker %s; it is restarted in %.1f s", ending.text, pauses.next_s)
            if self._first:
                # Another process may have taken the port since it was checked.
                self._server.port = free_ports()
            await pauses.wait(unless=self._stop)

    async def _serve_files(self) -> None:
        """Without a process, its files are all there is, until `stop`."""
        self.ready.set()
        self._on_started()
        await self._stop.wait()
        self.ready.clear()

    def _take_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            if (entry := self._server.log_entry(line)) is not None:
                self._on_line(entry)
            self._last_lines.add(text_of(line))
            if self._server.says_full(line):
                self._note_failure(WriteFailure.FULL, text_of(line))

    async def _ask(self) -> bool:
        """Whether the broker answers. Its answer says whether it could write."""
        answer = await self._server.ask()
        if answer is not None and answer.failure is not None:
            self._note_failure(answer.failure, answer.why)
        return answer is not None

    def _note_failure(self, failure: WriteFailure, why: str) -> None:
        if self._write_failure is None:
            _log.warning("the broker failed to write, and stores nothing until it is restarted: %s", why)
            self._write_failure, self._failed_write = failure, why

    async def _until_ready(self, child: Process) -> bool:
        """Returns True when the broker accepts connections; False if it exited, or `stop` was called, before that."""
        while child.running and not self._stop.is_set():
            if await self._server.is_ready(child.pid):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _until_over(self, child: Process) -> None:
        """Returns when the child has exited, by itself or because of `stop`."""
        async with (
            beside(self._end_when_asked(child), "end of the broker"),
            beside(self._watch_disk(child), "disk of the broker"),
        ):
            await child.wait()

    async def _end_when_asked(self, child: Process) -> None:
        await self._stop.wait()
        await child.end(Stop(_STOP_TIMEOUT_S))

    async def _watch_disk(self, child: Process) -> None:
        """Ends the broker to be restarted when it could not write; if the disk was full, once that has space again.

        A stream that could not write what it had accepted accepts nothing more, and may not report that. The process
        that follows has what the disk has. If that fails again and again soon after a start, the disk is broken.
        """
        begun_s = time.monotonic()
        await self._until(lambda: self._write_failure is not None or self._free_bytes() < _FULL_BYTES)
        if self._write_failure is WriteFailure.BROKEN and self._free_bytes() >= ROOM_BYTES_MIN:
            steady = time.monotonic() - begun_s >= STEADY_S
            self._failed_writes = 1 if steady else self._failed_writes + 1
            if self._failed_writes >= WRITE_FAILURES_MAX:
                raise InfrastructureError(
                    codes.FSYNC_FAILED,
                    f"the broker could not write to {self._directory}, {self._failed_writes} times in a row, each time "
                    f"soon after its start: {self._failed_write}",
                )
            _log.warning("the broker is restarted, to continue with what the disk has")
            self._is_renewed = True
            # Without being asked: it must not write what it has in memory over what is stored.
            child.kill()
            return
        await self._until_room()
        self._failed_writes = 0
        self._is_renewed = True
        await child.end(Stop(_STOP_FOR_ROOM_TIMEOUT_S))

    async def _until_room(self) -> None:
        _log.error(
            "the disk that holds %s is full: records that cannot be stored wait, and nothing is lost; free some "
            "space, and the run continues",
            self._directory,
        )
        await self._until(lambda: self._free_bytes() >= ROOM_BYTES_MIN or self._stop.is_set())
        if not self._stop.is_set():
            _log.warning("there is space again: the broker is restarted")

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Polls once a second, because a file system reports no changes."""
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(until_next(_ROOM_POLL_S))

    def _free_bytes(self) -> int:
        """Free space for this user; some file systems reserve a part for root."""
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            # The directory is gone: the broker and its clients report what that means.
            return ROOM_BYTES_MIN
        return (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
