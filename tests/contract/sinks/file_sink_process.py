"""Processes that run a file sink until something happens to them at a chosen step. Run by `test_file_crashes.py`.

Reads one JSON run a line on standard input, forks a process for it, and answers with its process id and then with how
it ended. The process plays the sink lane of a vertex: it delivers numbered records from the mark on, cut differently in
every run, and keeps its mark in a file.

The steps are the calls of the operating system that a file sink makes; each can be met right before or right after.
What happens is a signal the process sends to itself: SIGKILL, or SIGSTOP to be continued by the test later.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.account import Account
from millstream.errors import FencedError
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream_connectors.file.sink import parquet as file_parquet
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.delivery import Delivery, DeliveryLimits, Settlement
from millstream_writer.sink import SinkFrame
from tests.contract.sinks.file_target import file_spec, sink_owner, value_of
from tests.unit.writer.sink_frames import sink_frame

FRAME_RECORDS = 50
SEQUENCES_PER_FRAME = 3
REFUSED_EVERY = 13
"""Every so many records, one cannot be stored and is dropped."""


class Trap:
    """Sends a signal when a step has been met so many times."""

    def __init__(self, step: str, when: str, times: int, signal_number: int) -> None:
        self._step = (step, when)
        self._times = times
        self._signal = signal_number

    def meet(self, step: str, when: str) -> None:
        if (step, when) == self._step:
            self._times -= 1
            if self._times == 0:
                os.kill(os.getpid(), self._signal)

    def around(self, call: Callable[..., Any], step_of: Callable[..., str]) -> Callable[..., Any]:
        def trapped(*arguments: Any, **options: Any) -> Any:
            step = step_of(*arguments)
            self.meet(step, "before")
            result = call(*arguments, **options)
            self.meet(step, "after")
            return result

        return trapped


def frames_from(mark: Position, records: int, count: int) -> list[SinkFrame]:
    """The next frames of the buffer. Frames are not numbered without gaps: other buffers share the stream."""
    done = mark.sequence // SEQUENCES_PER_FRAME
    frames: list[SinkFrame] = []
    for number in range(done, min(done + count, -(-records // FRAME_RECORDS))):
        skipped = mark.record_index if number == done else 0
        numbers = range(number * FRAME_RECORDS + skipped, min((number + 1) * FRAME_RECORDS, records))
        values = [b"not json" if number % REFUSED_EVERY == 0 else value_of(number) for number in numbers]
        frames.append(sink_frame(values, SEQUENCES_PER_FRAME * (number + 1), first_index=skipped))
    return frames


class MarkFile:
    """Where the process keeps what a vertex keeps in its ledger."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.position, self.account = Position(0), Account()
        if path.exists():
            written = json.loads(path.read_text())
            self.position, self.account = Position(*written["position"]), Account(**written["account"])

    def commit(self, settled: Settlement | None, trap: Trap) -> None:
        if settled is None:
            return
        self.position = settled.position
        self.account.add(settled.account)
        account = {"inputs": self.account.inputs, "processed": self.account.processed, "dropped": self.account.dropped}
        trap.meet("mark", "before")
        partial = self._path.with_suffix(".new")
        partial.write_text(json.dumps({"position": self.position, "account": account}))
        partial.replace(self._path)
        trap.meet("mark", "after")


async def deliver_all(run: dict[str, Any], trap: Trap) -> None:
    path, mark = Path(run["path"]), MarkFile(Path(run["path"]).with_suffix(".mark"))
    rng = random.Random(run["epoch"])
    policy = RetryPolicy(Backoff(0.001, steps=1), OnFailure.DROP)
    spec = file_spec(path, run["format"], maxRecords=rng.choice([70, 130, 200]))
    async with open_sink(spec, sink_owner(run["epoch"], start=mark.position)) as lane:
        delivery = Delivery(lane, None, policy, DeliveryLimits(400, 10**9), where="p/out/in-out.0", rng=rng)
        end = mark.position
        while batch := frames_from(end, run["records"], rng.randint(1, 4)):
            last = batch[-1]
            end = Position(last.sequence)
            if last.frame.records > 1 and rng.random() < 0.5:
                # A mark in the middle of a frame names the frame before it.
                taken = rng.randrange(1, last.frame.records)
                batch[-1] = last.take(range(taken))
                end = Position(last.sequence - SEQUENCES_PER_FRAME, last.first_index + taken)
            await delivery.write(batch, end)
            mark.commit(delivery.take_settled(), trap)
        await delivery.flush()
        mark.commit(delivery.take_settled(), trap)


def run_process(run: dict[str, Any]) -> int:
    trap = Trap(run["step"], run["when"], run["times"], run["signal"])

    def fsync_step(descriptor: int) -> str:
        return "directory fsync" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync"

    os.write = trap.around(os.write, lambda *_: "write")
    os.fsync = trap.around(os.fsync, fsync_step)
    os.rename = trap.around(os.rename, lambda *_: "rename")
    try:
        asyncio.run(deliver_all(run, trap))
    except FencedError:
        return FencedError.exit_code
    return 0


def main() -> None:
    file_parquet.ROW_GROUP_RECORDS = 64
    for line in sys.stdin:
        run = json.loads(line)
        if "continue" in run:
            os.kill(run["continue"], signal.SIGCONT)
            _, status = os.waitpid(run["continue"], 0)
            print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), file=sys.stdout, flush=True)
            continue
        process = os.fork()
        if process == 0:
            os._exit(run_process(run))
        if run["signal"] == signal.SIGSTOP:
            os.waitpid(process, os.WUNTRACED)
            print(json.dumps({"stopped": process}), file=sys.stdout, flush=True)
            continue
        _, status = os.waitpid(process, 0)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
