"""Records that end the process of their function, and kills from outside: real processes, and the calls of lanes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.frame import Frame, build_frame
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import LocalFunction, open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_vertex.mapping import MapStage
from millstream_vertex.stage import StageInput, StageResult

TIMEOUT_S = 300
POLICY = RetryPolicy(Backoff(0.01, steps=3), OnFailure.DEAD_LETTER)
FUNCTIONS = """
import ctypes, os, pathlib, resource, signal, sys, time
import millstream_udf as udf

HERE = pathlib.Path(__file__).parent
if cgroup := os.environ.get("IN_CGROUP"):
    pathlib.Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))

def obey(value):
    match value:
        case b"exit": os._exit(3)
        case b"well": os._exit(0)
        case b"crash":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            print("about to crash", file=sys.stderr, flush=True)
            ctypes.string_at(0)
        case b"abort": os.abort()
        case b"memory":
            kept = []
            while True: kept.append(os.urandom(1 << 20))
        case b"hang":
            while True: time.sleep(3600)
        case b"wait":
            with (HERE / "begun").open("a") as begun:
                print(os.getpid(), file=begun)
            while not (HERE / "gate").exists():
                time.sleep(0.005)
    return value

@udf.map
def plain(value): return obey(value)

@udf.map
async def waiting(value): return obey(value)

@udf.map(threads=4)
def threaded(value): return obey(value)

@udf.source
class Feed:
    async def open(self, position, partition, partitions):
        self.next, self.partition = int(position or 0), partition
    async def read(self, context, records_max, timeout):
        if self.partition == 0:
            os._exit(3)
        self.next += 1
        return udf.Batch([udf.Record(b"%d" % self.next, event_time=1)], position=b"%d" % self.next)

@udf.map(batch=True)
def many(values): return [obey(value) for value in values]
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


@asynccontextmanager
async def running(functions: Path, name: str, **changes: Any) -> AsyncIterator[LocalFunction]:
    spec = SidecarSpec(python_command(f"{functions}:{name}"), "udf", "p", "f", stop_timeout_s=5.0, **changes)
    async with asyncio.timeout(TIMEOUT_S), open_local_function(spec, log=lambda *_: None) as function:
        yield function


@asynccontextmanager
async def lane(function: LocalFunction, number: int = 0) -> AsyncIterator[MapStage]:
    name = StreamName("p", "f", f"in-f.{number}", 0)
    async with function.open_map(FunctionKind.MAP, name) as stream:
        yield MapStage(stream, POLICY, where=name.where, has_dead_letter=True, needs_tags=False, rng=random.Random(1))


def frame_of(*values: bytes) -> Frame:
    return build_frame(values, array("q", range(len(values))), ingest_time_us=1)


async def mapped(stage: MapStage, *values: bytes) -> StageResult:
    return await stage.on_frame(StageInput(frame_of(*values), 0))


def values_of(frame: Frame | None) -> Sequence[bytes]:
    return [] if frame is None else frame.values()


@pytest.mark.guarantee("I2")
@pytest.mark.parametrize(
    ("name", "poison"),
    [
        ("waiting", b"crash"),
        pytest.param("plain", b"exit", marks=pytest.mark.sweep),
        pytest.param("threaded", b"well", marks=pytest.mark.sweep),
        pytest.param("many", b"abort", marks=pytest.mark.sweep),
    ],
)
async def test_only_the_record_that_ends_its_process_is_a_dead_letter(
    functions: Path, name: str, poison: bytes
) -> None:
    good = [b"%d" % number for number in range(7)]
    async with running(functions, name) as function, lane(function) as one, lane(function, 1) as other:
        async with asyncio.TaskGroup() as tasks:
            # Calls of the same lane and of another one are in flight with it.
            bad = tasks.create_task(mapped(one, *good[:5], poison, *good[5:]))
            others = [tasks.create_task(mapped(each, *good)) for each in (one, other, other)]
        (headers,) = bad.result().dead_letters.headers()  # type: ignore[union-attr]
        assert values_of(bad.result().dead_letters) == [poison]
        assert values_of(bad.result().frame) == good
        assert all(values_of(task.result().frame) == good for task in others)
        assert all(task.result().dead_letters is None for task in others)
        reason = headers["millstream-dead-letter-reason"].decode()
        ended = {b"exit": "code 3", b"crash": "SIGSEGV", b"well": "code 0", b"abort": "SIGABRT"}[poison]
        assert ended in reason
        assert "3 times in a row" in reason
        if poison == b"crash":
            assert b"about to crash" in headers["millstream-dead-letter-detail"]
        # It works as before.
        assert values_of((await mapped(one, *good)).frame) == good


@pytest.mark.guarantee("I2")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.sweep)])
async def test_kills_from_outside_never_count(functions: Path, number: signal.Signals) -> None:
    """The function is killed whenever it has begun with its only record: more often than a record may end it."""
    begun = functions.parent / "begun"

    async def kill_each() -> None:
        seen = 0
        while seen < 5:
            pids = begun.read_text().split() if begun.exists() else []
            for pid in pids[seen:]:
                os.kill(int(pid), number)
                if number is signal.SIGTERM:
                    # It finishes its calls before it ends.
                    os.kill(int(pid), signal.SIGKILL)
                seen += 1
            await asyncio.sleep(0.01)
        (functions.parent / "gate").touch()

    async with running(functions, "plain") as function, lane(function) as one:
        killing = asyncio.create_task(kill_each())
        result = await mapped(one, b"wait")
        await killing
        assert (values_of(result.frame), result.dead_letters, result.errors) == ([b"wait"], None, 0)
        assert function.statistics().restarts >= 5


async def test_a_function_that_is_asked_to_end_and_exits_without_an_error_is_not_the_cause(functions: Path) -> None:
    """The calls that it has read are answered, and the others are sent to the next process."""
    async with running(functions, "plain") as function, lane(function) as one:
        waiting = [asyncio.create_task(mapped(one, b"wait")) for _ in range(3)]
        begun = functions.parent / "begun"
        while not (begun.exists() and begun.read_text()):  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(0.01)
        os.kill(int(begun.read_text().split()[0]), signal.SIGTERM)
        (functions.parent / "gate").touch()
        for task in waiting:
            result = await task
            assert (values_of(result.frame), result.dead_letters, result.retries) == ([b"wait"], None, 0)


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup with little memory."""
    name = f"millstream-test-{os.getpid()}"
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        cgroup = root / name
        try:
            cgroup.mkdir()
        except OSError:
            continue
        try:
            (cgroup / limit).write_text(str(160 << 20))
            yield cgroup
            return
        except OSError:
            continue
        finally:
            cgroup.rmdir()
    pytest.skip("no cgroup can be created here: that the kernel's out-of-memory kills count is not tested")


@pytest.mark.sweep
@pytest.mark.guarantee("I2")
async def test_a_kill_for_lack_of_memory_counts_and_others_in_the_same_cgroup_do_not(
    functions: Path, small_cgroup: Path
) -> None:
    env = {"IN_CGROUP": str(small_cgroup)}
    async with running(functions, "plain", env=env) as function, lane(function) as one:
        pid = function.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert values_of((await mapped(one, b"a")).frame) == [b"a"]
        result = await mapped(one, b"a", b"memory", b"b")
    assert values_of(result.frame) == [b"a", b"b"]
    assert values_of(result.dead_letters) == [b"memory"]
    (headers,) = result.dead_letters.headers()  # type: ignore[union-attr]
    assert b"memory of its cgroup was full" in headers["millstream-dead-letter-reason"]


async def test_a_read_that_ends_the_process_has_failed_and_no_other(functions: Path) -> None:
    async with running(functions, "Feed") as function, AsyncExitStack() as stack:
        bad, good = [
            await stack.enter_async_context(
                function.open_source(
                    StreamName("p", "f", f"source.{partition}", 0), position=b"", partition=partition, partitions=2
                )
            )
            for partition in (0, 1)
        ]

        async def read_on() -> None:
            for number in range(1, 50):
                batch = await good.read(1, 1 << 20, 0.01)
                assert (batch.error, batch.position) == ("", b"%d" % number)

        async with asyncio.TaskGroup() as tasks:
            # Its reads are in flight when the other lane's end the process.
            tasks.create_task(read_on())
            failed = await bad.read(1, 1 << 20, 0.01)
        assert "code 3, 3 times in a row" in failed.error
        assert failed.attempts == 3


@pytest.mark.parametrize("name", ["plain", pytest.param("waiting", marks=pytest.mark.sweep)])
async def test_a_call_without_an_answer_is_named_and_ended_by_its_limit(
    functions: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    slow: list[bool] = []
    async with running(functions, name, timeout_s=12.0, on_slow=slow.append) as function, lane(function) as one:
        mapping = asyncio.create_task(mapped(one, b"hang"))
        while not slow:  # noqa: ASYNC110 - the supervisor notes it
            await asyncio.sleep(0.05)
        assert function.statistics().oldest_call_s >= 10
        assert "has had 1 record of p/f/in-f.0" in caplog.text
        # Later ends come sooner, so that the test does.
        object.__setattr__(function.sidecar.spec, "timeout_s", 2.0)
        result = await mapping
    (headers,) = result.dead_letters.headers()  # type: ignore[union-attr]
    reason = headers["millstream-dead-letter-reason"].decode()
    assert reason.startswith("its process did not answer a call within 2 s")
    # It says where the function was.
    assert "functions.py" in headers["millstream-dead-letter-detail"].decode()


@pytest.mark.sweep
async def test_onfailure_retry_tries_without_end(functions: Path) -> None:
    async with running(functions, "plain") as function, lane(function) as one:
        one._policy = RetryPolicy(Backoff(0.01), OnFailure.RETRY)
        trying = asyncio.create_task(mapped(one, b"exit", b"good"))
        while function.statistics().restarts < 6:  # noqa: ASYNC110 - the supervisor counts them
            await asyncio.sleep(0.01)
        assert not trying.done()
        trying.cancel()
