"""The JVM of a driver: one child process that is Spark.

Above it: the session. Below it: Spark's launcher, which says the command, and Java. It knows how the process starts,
communicates and ends, but does not know jobs.

The launcher's command is changed before it is run: the jars are named one by one, because `jars/*` is in the order of
the directory, and an ahead-of-time cache is valid for one order only; and it is put into a file, so that `ps` shows no
passwords.

The JVM ends with its parent, however that ends: the kernel kills it, and its standard input ends.

Its signs of life are for `millstream.health`: it answers, or works, or waits for the machine. Time alone does not show
whether a JVM hangs. On a busy machine a start takes minutes and an answer many seconds; but a process that works uses
processor time, and the state of one that waits for a processor or a disk is visible. So a missing answer counts as
silence only while the JVM does nothing, up to a limit. Before it can be asked, it may also wait for the network: for
packages of `spark.jars.packages`, or for a master.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from millstream import codes
from millstream.background import beside
from millstream.codes.code import Code
from millstream.errors import InfrastructureError, UserError
from millstream.files import write_private
from millstream.health import Health, Patience
from millstream.lines import LastLines, text_of
from millstream.processes import Process, Stop, exit_text, open_process
from millstream.udf.environment import inherited
from millstream_reduce.spark import umask
from millstream_reduce.spark.java import MLLIB_MODULE, Java, Question, java_arguments, launcher_jar, spark_home

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0
"""Time until it can be reached. Packages of `spark.jars.packages` are fetched within this time."""
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.01
_LINES_KEPT = 12
_LAUNCHER_LINES_KEPT = 100
_OUT_OF_MEMORY_EXIT = 3
"""Exit code that -XX:+ExitOnOutOfMemoryError gives."""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_USAGE_ERROR = b"\0--usage-error\0"
"""In the launcher's answer if it could not interpret the question."""
_PORT = struct.Struct("!i")
_DATED = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?P<level>[A-Z]+) (?P<text>.*)")
_NOT_INHERITED = re.compile(r"SPARK_(REMOTE|API_MODE|CONNECT_MODE.*|HOME|TESTING)|PYSPARK_(SUBMIT_ARGS|GATEWAY_.*)")
"""Variables that would override the settings given here."""
_OF_SPARK = re.compile(r"(SPARK|PYSPARK|HADOOP|YARN|HIVE|KRB5|JAVA|JDK|KUBE)[A-Z0-9_]*")
"""Variables that Spark and its libraries read themselves. Functions run inside it, so it gets no others."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """How PySpark connects to the JVM."""

    port: int
    secret: str


@dataclass(frozen=True, slots=True)
class JvmCommand:
    """How a JVM is started."""

    java: Java
    master: str
    conf: Mapping[str, str]
    python: str
    """The interpreter of its Python workers."""
    directory: Path
    """Its working directory."""
    memory_bytes: int
    """Size of its heap, for messages about it."""
    local: bool
    """Whether it runs the tasks itself."""
    records_cache: bool = False
    """Whether it writes Spark's start-up cache, which is for all users of an installation."""
    stop_timeout_s: float = STOP_TIMEOUT_S


class SparkEndedError(InfrastructureError):
    """Spark's JVM has ended, or was killed because it hung."""

    def __init__(self, code: Code, reason: str, killed_by: int = 0) -> None:
        super().__init__(code, reason)
        self.killed_by = killed_by
        """The signal from outside that ended it; 0 if it ended otherwise."""


class Jvm:
    """A JVM that runs, or has ended."""

    def __init__(self, process: Process, memory_bytes: int, last_lines: LastLines) -> None:
        """`last_lines`: the last lines of its output."""
        self._process = process
        self._memory_bytes = memory_bytes
        self._last_lines = last_lines
        self.signs = SignsOfLife(process.pid)
        self._health = Health(process.pid, Patience(), report=lambda text: _log.warning("Spark's JVM %s", text))

    async def ended(self) -> str:
        """Wait until it has ended. Returns how, in a sentence."""
        exit_code = await self._process.wait()
        printed = self._last_lines.text()
        if exit_code == _OUT_OF_MEMORY_EXIT or "java.lang.OutOfMemoryError" in printed:
            return (
                f"Spark ran out of memory ({self._memory_bytes >> 20} MiB): raise `spec.spark.driverMemory`, or make "
                "windows smaller"
            )
        if self._health.hung:
            return f"Spark's JVM {self._health.hung}: it was killed"
        killed = exit_code == -signal.SIGKILL
        how = "killed; perhaps by the system, for lack of memory" if killed else exit_text(exit_code)
        return f"Spark's JVM ended ({how}). " + (
            f"Its last output was:\n{printed}" if printed else "It printed nothing"
        )

    @property
    def killed_by(self) -> int:
        """The signal that ended it, if such signals come from outside; otherwise 0."""
        code = -(self._process.exit_code or 0)
        return code if code in _FROM_OUTSIDE else 0

    async def end_when_hung(self) -> None:
        """Kill it if it hangs."""
        await self._process.kill_when_hung(self._health, self.signs.look)


@asynccontextmanager
async def open_jvm(
    command: JvmCommand, on_started: Callable[[], object] = lambda: None
) -> AsyncIterator[tuple[Jvm, Gateway]]:
    """Start a JVM and wait until it can be reached. At the end of the block it has ended.

    `on_started` is called in between.
    """
    connection = command.directory / "gateway"
    environment = _environment(command, connection)
    last_lines = LastLines(_LINES_KEPT)
    try:
        question = Question(command.java, command.master, command.conf, environment, command.directory)
        launched = await java_arguments(question, lambda asked: _ask_launcher(command, environment, asked))
        arguments = _arguments(command, launched)
    except OSError as error:
        raise InfrastructureError(codes.SPARK_NOT_STARTED, f"cannot start Spark: {error}") from error
    async with open_process(
        arguments,
        name="Spark",
        stdin=asyncio.subprocess.PIPE,
        stdout=lambda lines: _log_lines(lines, last_lines),
        stderr=asyncio.subprocess.STDOUT,
        environment=environment,
        cwd=command.directory,
        is_private=not command.records_cache,
        # It ends when its standard input does; what it removes at its end is worth waiting a moment for.
        stop=Stop(command.stop_timeout_s, by=None),
    ) as process:
        on_started()
        jvm = Jvm(process, command.memory_bytes, last_lines)
        # Until the block ends: a JVM that is ending answers nothing, and has its own time limit.
        async with beside(jvm.end_when_hung(), "watch over the JVM"):
            yield jvm, await _gateway(process, jvm, connection, last_lines)


async def _ask_launcher(command: JvmCommand, environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The command that Spark's launcher would run."""
    asking = [
        *(str(command.java.executable), "-Xmx64m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1"),
        *("-cp", str(launcher_jar()), "org.apache.spark.launcher.Main", *arguments),
    ]
    errors = LastLines(_LAUNCHER_LINES_KEPT)
    # Its answer is not text: arguments, each followed by a NUL.
    with tempfile.TemporaryFile(dir=command.directory) as answer:
        async with open_process(
            asking,
            name="Spark's launcher",
            stdout=answer,
            stderr=lambda lines: errors.add(*map(text_of, lines)),
            environment=environment,
        ) as process:
            jvm = Jvm(process, 0, errors)
            async with beside(jvm.end_when_hung(), "watch over the launcher"):
                code = await process.wait()
        answer.seek(0)
        _, begun, launched = answer.read().partition(b"\0\n")
    if code < 0:
        raise SparkEndedError(codes.SPARK_NOT_STARTED, f"Spark does not start: {await jvm.ended()}", jvm.killed_by)
    if code != 0 or not begun:
        raise InfrastructureError(
            codes.JAVA_UNUSABLE, f"{command.java.executable} does not run: {errors.text().strip()}"
        )
    if _USAGE_ERROR in launched:
        raise UserError(codes.SPARK_SETTINGS, f"Spark rejects its settings (`spec.spark`): {errors.text().strip()}")
    return [argument.decode() for argument in launched.split(b"\0")[:-1]]


def _arguments(command: JvmCommand, launched: Sequence[str]) -> list[str]:
    """The command that is run instead of the launcher's."""
    arguments = list(launched)
    at = arguments.index("-cp") + 1
    arguments[at] = os.pathsep.join(path for part in arguments[at].split(os.pathsep) for path in _expanded(part))
    options = [part for name, value in command.conf.items() for part in ("--conf", f"{name}={value}")]
    arguments += ["--master", command.master, *options, "pyspark-shell"]
    file = command.directory / "java-arguments"
    write_private(file, "".join(f"{_argument_line(argument)}\n" for argument in arguments if argument != MLLIB_MODULE))
    return [str(command.java.executable), f"@{file}"]


def _expanded(path: str) -> list[str]:
    """`folder/*` of a class path as jars, ordered by name."""
    folder, star = path[:-2], path.endswith("/*")
    return sorted(str(jar) for jar in Path(folder).glob("*.jar")) if star else [path]


def _argument_line(argument: str) -> str:
    """The argument as `java` reads it from a file of arguments."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _environment(command: JvmCommand, connection: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if _OF_SPARK.fullmatch(name) and not _NOT_INHERITED.fullmatch(name)
    }
    ours = {
        "JAVA_HOME": str(command.java.home),
        "SPARK_HOME": str(spark_home()),
        # The launcher needs it: "2.13" of `spark-launcher_2.13-4.3.0.jar`.
        "SPARK_SCALA_VERSION": launcher_jar().name.split("_")[1].split("-")[0],
        "PYSPARK_PYTHON": command.python,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
    }
    if command.local:
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
        # Files that users' functions create are theirs.
        ours[umask.VARIABLE] = f"{umask.current():o}"
    return inherited(os.environ) | kept | ours


async def _gateway(process: Process, jvm: Jvm, connection: Path, last_lines: LastLines) -> Gateway:
    """What the JVM writes when it can be reached: a file that appears complete."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not connection.exists():
                if not process.running:
                    raise SparkEndedError(
                        codes.SPARK_NOT_STARTED, f"Spark does not start: {await jvm.ended()}", jvm.killed_by
                    )
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise InfrastructureError(
            codes.SPARK_NOT_STARTED,
            f"Spark has not started within {START_TIMEOUT_S:.0f} s. Its last output was:\n{last_lines.text()}",
        ) from None
    data = connection.read_bytes()
    connection.unlink()
    (port,) = _PORT.unpack_from(data, 0)
    (length,) = _PORT.unpack_from(data, _PORT.size)
    return Gateway(port, data[2 * _PORT.size :][:length].decode())


def _log_lines(lines: list[bytes], last_lines: LastLines) -> None:
    """Log the output of the JVM, its Python workers and the functions in them.

    Spark logs a failed attempt as an error; what matters of it is reported by the requests that waited for the job.
    """
    for line in lines:
        text = text_of(line).rstrip()
        if not text:
            continue
        last_lines.add(text)
        match = _DATED.fullmatch(text)
        _log.info("%s", f"{match['level']} {match['text']}" if match else text)


START_IDLE_S = 120.0
"""A JVM that cannot be asked yet may do nothing for this long."""
WORKING_S = 300.0
"""A working JVM may fail to answer for this long."""
_ANSWER_S = 2.0
"""How long one check waits for the answer."""

Ask = Callable[[], asyncio.Future[None]]
"""Returns a future that is done when the JVM has answered, however long that takes."""


class SignsOfLife:
    """The signs of life of one JVM, by its process id."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._pid = pid
        self._clock = clock
        self._cpu_s = -1.0
        self._begin_to_ask: Ask | None = None
        self._question: asyncio.Future[None] | None = None
        self._since_s = clock()
        """When it last answered; before it can be asked, when it last worked."""

    def begin_to_ask(self, ask: Ask) -> None:
        """From now on it can be asked."""
        self._begin_to_ask = ask
        self._since_s = self._clock()

    def stop_asking(self) -> None:
        """It is about to be stopped, and is not asked any more."""
        self._begin_to_ask = None
        self._since_s = self._clock()

    async def look(self) -> bool:
        """Whether there is a sign of life."""
        works = self._works()
        if self._begin_to_ask is None:
            if works:
                self._since_s = self._clock()
            # A signal has not stopped the whole process.
            return _states(self._pid) != {"T"} and self._clock() - self._since_s < START_IDLE_S
        if self._question is None:
            self._question = self._begin_to_ask()
            # The task that waits for the JVM reports its failure, even if its result is no longer wanted.
            self._question.add_done_callback(lambda question: question.cancelled() or question.exception())
        await asyncio.wait((self._question,), timeout=_ANSWER_S)
        if self._question.done():
            # The question could not be asked, so the JVM has ended, which others notice.
            failed = self._question.cancelled() or self._question.exception() is not None
            self._question = None
            self._since_s = self._clock()
            return not failed
        return works and self._clock() - self._since_s < WORKING_S

    def _works(self) -> bool:
        """Whether it has used processor time since the previous check, or waits for a processor or a disk."""
        try:
            used = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return False
        before, self._cpu_s = self._cpu_s, used.user + used.system
        return self._cpu_s > before >= 0.0 or not _states(self._pid).isdisjoint("RD")


def _states(pid: int) -> set[str]:
    """States of its threads, in the letters of /proc; empty if the system does not report them."""
    states = set()
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread may end meanwhile. Its name is in brackets and may contain anything.
        with suppress(OSError, IndexError):
            states.add(status.read_text(errors="replace").rpartition(")")[2].split()[0])
    return states
