"""What a run knows of the present process of a worker."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from millstream.record import ReplicaId
from millstream_runner.local.replica import Hooks, Logs, ProcessPlan
from millstream_runner.local.states import State
from millstream_runner.local.workers import LocalWorker

OUT = ReplicaId("out", 0)


async def never(_: ReplicaId) -> bool:
    return False


async def ignore(_: bytes) -> None:
    pass


def test_a_new_process_of_a_worker_has_said_nothing_yet(tmp_path: Path) -> None:
    hooks = Hooks(lambda _: 0, never, ignore, lambda _: True, lambda _: None, lambda: None)
    plan = ProcessPlan(OUT.name, (OUT,))
    with ExitStack() as files:
        worker = LocalWorker(plan, Logs(tmp_path, plan, files), hooks, memory_max=1 << 30)
        worker.state = State.RUNNING
        worker.hear(f"running {OUT}")
        worker.hear(f"slow {OUT} out")
        assert worker.state_of(OUT) is State.RUNNING
        assert worker.current.slow_s("out", time.monotonic()) > 0
        worker.started()
        assert worker.state_of(OUT) is State.STARTING
        assert worker.current.slow_s("out", time.monotonic()) == 0
