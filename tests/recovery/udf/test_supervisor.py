"""Sidecars that do not start, die, hang or outlive their owner: real processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from millstream.die_with_parent import dying_with_parent
from millstream.errors import UdfError
from millstream.frame import build_frame
from millstream.limits import HUNG_AFTER_S
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import LocalFunction, open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import STARTS_MAX, SidecarSpec, python_command
from millstream.udf.socket_directory import open_socket_directory, remove_abandoned
from millstream_udf import columns
from tests.support.children import started

NAME = StreamName("flights", "clean", "in-clean.0", 0)
TIMEOUT_S = 180
REPOSITORY = Path(__file__).parents[3]


def spec_of(command: Sequence[str], **changes: object) -> SidecarSpec:
    fields: dict[str, object] = {"start_timeout_s": 20.0, "stop_timeout_s": 5.0}
    return SidecarSpec(command, "udf", "flights", "clean", **(fields | changes))  # type: ignore[arg-type]


def script(directory: Path, text: str) -> list[str]:
    path = directory / "function.py"
    path.write_text(text)
    return python_command(f"{path}:process")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory in which no other process makes anything; its name is short, for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - other processes make it true
            await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def call(sidecar: LocalFunction, value: bytes) -> list[bytes]:
    frame = build_frame([value], array("q", [1]), ingest_time_us=1)
    async with asyncio.timeout(TIMEOUT_S), sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        return columns.unpack_bytes((await stream.call(frame, watermark_us=0)).values)


NO_SETUP = """
class process:
    def setup(self, context):
        raise ValueError("no database")

    def process(self, value):
        return value
"""


CANCELLED_SETUP = """
import asyncio

class process:
    async def setup(self, context):
        connecting = asyncio.get_running_loop().create_future()
        connecting.cancel()
        await connecting

    def process(self, value):
        return value
"""


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("import no_such_module\n", ["ModuleNotFoundError: No module named 'no_such_module'", "exited with code 2"]),
        ("def other(value): return value\n", ["has no process; it has other", "exited with code 2"]),
        ("def process(): ...\n", ["takes 0 arguments", "exited with code 2"]),
        (NO_SETUP, ["ValueError: no database", "tried 3 times"]),
        (CANCELLED_SETUP, ["RuntimeError: setup of process was cancelled", "await connecting"]),
    ],
)
async def test_a_function_that_cannot_be_served(tmp_path: Path, temporary: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(UdfError) as error:
        async with (
            asyncio.timeout(TIMEOUT_S),
            open_local_function(spec_of(script(tmp_path, text)), log=lambda *_: None),
        ):
            pass
    message = str(error.value)
    assert message.startswith("flights/clean: udf exited with code")
    assert f"-m millstream_udf {tmp_path}" in message
    for part in parts:
        assert part in message
    assert not list(temporary.iterdir())


SLOW_START = """
import os, pathlib, time

HERE = pathlib.Path(__file__).parent
with (HERE / "begun").open("a") as begun:
    print(os.getpid(), file=begun)
while not (HERE / "gate").exists():
    time.sleep(0.005)

def process(value):
    return value
"""


async def test_kills_from_outside_while_it_starts_are_not_its_failures(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def pids() -> list[int]:
        return [int(line) for line in begun.read_text().splitlines()] if begun.exists() else []

    async def kill_each() -> None:
        for number in range(STARTS_MAX + 1):
            await until(lambda number=number: len(pids()) > number)  # type: ignore[misc]
            os.kill(pids()[number], signal.SIGKILL if number % 2 else signal.SIGTERM)
        (tmp_path / "gate").touch()

    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(kill_each())
        spec = spec_of(script(tmp_path, SLOW_START), start_timeout_s=60.0)
        async with open_local_function(spec, log=lambda *_: None) as function:
            assert await call(function, b"a") == [b"a"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-command", "x"], r"code 127 before it was ready\n.*command not found\n.*no-such-command x"),
        (["/"], r"code 126 before it was ready\n(.|\n)*Permission denied"),
        ([sys.executable, "-c", "raise SystemExit(5)"], r"code 5 before it was ready \(tried 3 times\)"),
    ],
)
async def test_a_command_that_does_not_serve(command: list[str], message: str) -> None:
    with pytest.raises(UdfError, match=message):
        async with asyncio.timeout(TIMEOUT_S), open_local_function(spec_of(command), log=lambda *_: None):
            pass


async def test_a_command_that_never_answers() -> None:
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(UdfError, match=r"did not answer at MILLSTREAM_UDF_SOCKET within 0\.2 s"):
        async with open_local_function(spec_of(silent, start_timeout_s=0.2), log=lambda *_: None):
            pass


OLD = """
import os
from concurrent.futures import ThreadPoolExecutor
import grpc
from millstream_udf.wire.udf.v1 import udf_pb2
described = udf_pb2.DescribeResponse(protocol_version=0, language="cobol").SerializeToString()
handler = grpc.unary_unary_rpc_method_handler(lambda request, context: described)
server = grpc.server(ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("millstream.udf.v1.Udf", {"Describe": handler})])
server.add_insecure_port("unix:" + os.environ["MILLSTREAM_UDF_SOCKET"])
server.start()
server.wait_for_termination()
"""


async def test_a_command_that_speaks_an_older_protocol() -> None:
    spec = spec_of([sys.executable, "-c", OLD])
    with pytest.raises(UdfError, match=r"udf the function uses version 0 of the protocol, .* install a newer SDK"):
        async with asyncio.timeout(TIMEOUT_S), open_local_function(spec, log=lambda *_: None):
            pass


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UdfError, match=r"the working directory .* does not exist"):
        async with open_local_function(spec_of(["true"], cwd=tmp_path / "gone"), log=lambda *_: None):
            pass


@pytest.mark.guarantee("I8")
async def test_nothing_is_left_behind(tmp_path: Path, temporary: Path) -> None:
    async with open_local_function(
        spec_of(script(tmp_path, "def process(value): return value\n")), log=print
    ) as sidecar:
        pid = sidecar.statistics().pid
        assert pid is not None
        assert list(temporary.iterdir())
    assert is_gone(pid)
    assert not list(temporary.iterdir())


async def test_an_error_in_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with open_local_function(spec_of(script(tmp_path, "def process(value): return value\n")), log=print):
            raise KeyError


def came_back(sidecar: LocalFunction, deaths: int) -> bool:
    statistics = sidecar.statistics()
    return statistics.restarts == deaths and statistics.running


async def test_it_is_restarted_as_often_as_it_dies(tmp_path: Path) -> None:
    async with open_local_function(
        spec_of(script(tmp_path, "def process(value): return value\n")), log=print
    ) as sidecar:
        for deaths in range(1, 4):
            assert await call(sidecar, b"x") == [b"x"]
            pid = sidecar.statistics().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            # Unlike at the first start, bad luck does not stop it.
            await until(partial(came_back, sidecar, deaths))


async def test_one_that_ignores_being_told_is_killed_with_its_children(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        "import os, signal, subprocess, sys\n"
        "class process:\n"
        "    def setup(self, context):\n"
        "        self.child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    def process(self, value):\n"
        "        if value == b'hold':\n"
        "            while True: pass\n"
        "        return str(self.child.pid)\n",
    )
    frame = build_frame([b"hold"], array("q", [1]), ingest_time_us=1)
    async with open_local_function(spec_of(command, stop_timeout_s=0.5), log=print) as sidecar:
        (child,) = await call(sidecar, b"child")
        pid = sidecar.statistics().pid
        assert pid is not None
        async with sidecar.open_map(FunctionKind.MAP, NAME) as stream, asyncio.TaskGroup() as tasks:
            held = tasks.create_task(stream.call(frame, watermark_us=0))
            # It computes forever, and is well anyway: the process answers beside the function.
            await until(lambda: psutil.Process(pid).cpu_times().user > 0.5 or held.done())
            await sidecar.ask(10)
            assert sidecar.description.language == "python"
            held.cancel()
    assert is_gone(pid)
    assert is_gone(int(child))


HOLDS_THE_INTERPRETER = """
import ctypes

def process(value):
    if value == b"hold":
        # Called without releasing the interpreter, as an extension may do.
        ctypes.PyDLL(None).sleep(600)
    return value
"""


@pytest.mark.sweep
async def test_one_whose_interpreter_is_held_is_reported_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of(script(tmp_path, HOLDS_THE_INTERPRETER), hung_after_s=2.0)
    frame = build_frame([b"hold"], array("q", [1]), ingest_time_us=1)
    async with open_local_function(spec, log=print) as sidecar:
        async with sidecar.open_map(FunctionKind.MAP, NAME) as stream, asyncio.TaskGroup() as tasks:
            held = tasks.create_task(stream.call(frame, watermark_us=0))
            await until(lambda: sidecar.statistics().restarts == 1)
            held.cancel()
        assert await call(sidecar, b"x") == [b"x"]
    said = [record.getMessage() for record in caplog.records]
    # How long a silence was is measured, and the watching process may have waited for a processor.
    assert any(re.match(r"flights/clean: udf has not answered for \d+ s; it is replaced after 2 s", at) for at in said)
    assert any(re.match(r"flights/clean: udf did not answer for \d+ s: it was killed;", text) for text in said)


async def test_one_that_a_signal_has_stopped_is_reported_and_replaced_soon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As patient as it is by default with a slow function.
    async with open_local_function(
        spec_of(script(tmp_path, "def process(value): return value\n")), log=print
    ) as sidecar:
        pid = sidecar.statistics().pid
        assert pid is not None
        begun_s = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: is_gone(pid))
        assert HUNG_AFTER_S - 2 < time.monotonic() - begun_s < 60
        assert await call(sidecar, b"x") == [b"x"]
        assert sidecar.statistics().restarts == 1
    said = [record.getMessage() for record in caplog.records]
    assert any(re.search(r"udf has not answered for \d+ s; it is replaced after 60 s", text) for text in said)
    stopped = r"udf was stopped by a signal, and did not answer for \d+ s: it was killed"
    assert any(re.search(stopped, text) for text in said)


async def test_last_lines_are_reported_once_however_often_it_dies_with_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = script(
        tmp_path,
        "import os, sys\n"
        "def process(value):\n"
        "    print(value.decode(), file=sys.stderr, flush=True)\n"
        "    os._exit(7)\n",
    )
    async with open_local_function(spec_of(command), log=lambda *_: None) as sidecar:
        for deaths, value in enumerate((b"first", b"first", b"second"), start=1):
            frame = build_frame([value], array("q", [1]), ingest_time_us=1)
            async with sidecar.open_map(FunctionKind.MAP, NAME) as stream, asyncio.TaskGroup() as tasks:
                dying = tasks.create_task(stream.call(frame, watermark_us=0))
                await until(lambda: sidecar.statistics().restarts >= deaths)  # noqa: B023  # within the round
                dying.cancel()
    said = [record.getMessage() for record in caplog.records if "exited with code 7" in record.getMessage()]
    assert sum("\n    first" in text for text in said) == 1
    assert sum("\n    second" in text for text in said) == 1
    assert len(said) >= 3


OWNER = """
import asyncio, os, sys
from millstream.udf.function import open_local_function
from millstream.udf.sidecar import STARTS_MAX, SidecarSpec, python_command
async def main():
    spec = SidecarSpec(python_command(sys.argv[1]), "udf", "p", "v")
    async with open_local_function(spec, log=lambda *_: None) as function:
        print(function.statistics().pid, os.path.dirname(function.address.removeprefix("unix:")), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.guarantee("I8")
async def test_a_killed_owner_takes_its_sidecar_along(tmp_path: Path) -> None:
    function = script(tmp_path, "def process(value): return value\n")[-1]
    starting = started(sys.executable, "-c", OWNER, function, stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY)
    async with starting as owner:
        assert owner.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            pid, directory = (await owner.stdout.readline()).decode().split()
        assert not is_gone(int(pid))
        owner.kill()
        await owner.wait()
    await until(lambda: is_gone(int(pid)))
    # Its socket directory is left. The next owner removes it, once no process can be just about to lock it.
    left = Path(directory).parent
    assert left.exists()
    os.utime(left, (0, 0))
    with open_socket_directory():
        assert not left.exists()


def test_a_directory_in_use_is_left_alone() -> None:
    with open_socket_directory() as used:
        os.utime(used.parent, (0, 0))
        remove_abandoned(used.parent.parent)
        assert used.exists()
    assert not used.parent.exists()


async def test_a_tether_to_somebody_who_is_gone_starts_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    command = dying_with_parent(["touch", str(touched)])
    # As if the parent had died between the fork and the tether.
    command[command.index(str(os.getpid()))] = "0"
    async with started(*command) as process:
        assert await process.wait() != 0
    assert not touched.exists()
