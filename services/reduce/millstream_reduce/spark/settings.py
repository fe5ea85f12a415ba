"""Which Spark a pipeline uses, as plain values, and the settings that Spark gets at its start.

    pipeline ─► settings_of ─► SparkSettings ═ file ═► driver process ─► session_conf, driver_conf ─► Spark

Above it: the code that starts a driver, and the session. Below it: nothing of Spark. A comment at each setting says
why; figures were measured on two cores with Spark 4.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millstream import codes
from millstream.errors import UserError
from millstream.json_parser import parse_json
from millstream.limits import MIB
from millstream.resources import processors

if TYPE_CHECKING:
    from millstream.spec.models import Pipeline

TOKEN_VARIABLE = "MILLSTREAM_SPARK_TOKEN"
"""Environment variable with the token, for the driver and its clients."""
DRIVER_MEMORY_BYTES = 1024 * MIB
LOCAL_TASKS_MAX = 8
"""Concurrent tasks of a Spark on this machine, unless the master says otherwise: each has a Python process."""
_TASK_ATTEMPTS = 4
_LOCAL = re.compile(r"local(?:\[(?P<tasks>\d+|\*)(?:, *(?P<attempts>\d+))?\])?")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Which Spark to use, and with which resources."""

    directory: Path
    """For temporary files of the driver alone. Its contents are removed at the start."""
    master: str | None = None
    """In Spark's notation; None: on this machine, unless there is a `remote`."""
    remote: str | None = None
    """Address of a Spark Connect server, "sc://host:port"; None: Spark is started here."""
    token: str = ""
    """The token that the Spark Connect server requires."""
    encryption: bool = False
    """Whether to encrypt what Spark's processes send each other, and what they write outside the heap."""
    driver_memory_bytes: int = DRIVER_MEMORY_BYTES
    """Heap of the JVM that is started here."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings, which override ours."""
    name: str = "millstream"
    """How a cluster shows this driver."""
    functions: bool = True
    """Whether users' functions run in its Python workers; otherwise those only read rows for queries."""

    @property
    def local_tasks(self) -> int | None:
        """How many tasks run concurrently on this machine; None: they run elsewhere."""
        match = _LOCAL.fullmatch(self._named_master)
        if self.remote is not None or match is None:
            return None
        tasks = match["tasks"] or "1"
        return processors() if tasks == "*" else int(tasks)

    @property
    def effective_master(self) -> str:
        """The master, with attempts: a task of a plain `local[N]` is tried once, whatever killed it."""
        match = _LOCAL.fullmatch(self._named_master)
        if match is None:
            return self._named_master
        return f"local[{match['tasks'] or 1},{match['attempts'] or _TASK_ATTEMPTS}]"

    @property
    def place(self) -> str:
        """Where jobs run, in a word for people."""
        return self.remote or self.effective_master

    @property
    def _named_master(self) -> str:
        return self.master or f"local[{max(2, min(processors(), LOCAL_TASKS_MAX))}]"

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"directory": str(self.directory)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SparkSettings:
        try:
            data = parse_json(text)
            return cls(**data | {"directory": Path(data["directory"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(codes.SPARK_SETTINGS, f"these are not settings of a Spark driver: {error!r}") from error


def check_address(address: str, token: str) -> None:
    """Raise `UserError` if any machine that can reach `address` could run queries and functions."""
    if not token and not address.startswith("unix:"):
        raise UserError(
            codes.SPARK_TOKEN,
            f"the Spark driver would run what any machine that reaches {address} asks for: give it and its vertices "
            f"the same secret in the environment variable {TOKEN_VARIABLE}, or let it listen on a Unix socket "
            f"(unix:/path)",
        )


def settings_of(pipeline: Pipeline, base_dir: Path, directory: Path) -> SparkSettings:
    """What a pipeline says about its Spark, with references resolved. `directory` is for temporary files."""
    # Processes that get their settings ready do not need the spec.
    from millstream.spec.references import resolve

    spark = pipeline.spec.spark
    return SparkSettings(
        directory=directory,
        master=spark.master if spark is not None else None,
        remote=spark.remote if spark is not None else None,
        token=resolve(spark.token, base_dir, "`token` in spec.spark") if spark is not None and spark.token else "",
        encryption=spark is not None and spark.encryption,
        driver_memory_bytes=int(spark.driver_memory) if spark is not None else DRIVER_MEMORY_BYTES,
        conf={
            name: resolve(value, base_dir, f"`{name}` in spec.spark.conf")
            for name, value in (spark.conf if spark is not None else {}).items()
        },
        name=pipeline.name,
        functions=any(
            placed.program.python is not None
            for vertex in pipeline.spec.vertices
            if vertex.group_by is not None
            for placed in vertex.programs
        ),
    )


_CLUSTER_PARTITIONS = 16
_SMALL_MACHINE_TASKS = 2
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

SQL_CONF = {
    "spark.sql.session.timeZone": "UTC",
    # The driver does not turn tables from Arrow into rows: twice as fast from 100,000 rows on.
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    # The traceback of a user's function without Spark's frames.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    # A worker that dies of a signal reports where it was.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
"""For any session, also at a Spark Connect server."""

_DRIVER_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Over loopback TCP every task with Python code waits 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # A large job must not hold up a small one.
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0",
}

_LOCAL_CONF = {
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Jobs are small: planning them twice costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
}

_OPTIMIZED_LATER = [
    f"-XX:Tier4{name}Threshold={10 * default}"
    for name, default in (("Invocation", 5_000), ("MinInvocation", 600), ("Compile", 15_000), ("BackEdge", 40_000))
]
"""Java's optimizing compiler waits until code has run ten times as often as by default. It took a third of all
processor time from the start to the first result. Over 300 small jobs it now takes 3.7 s instead of 8.8 s, and the last
ones are as fast."""

_SMALL_AT_FIRST = "-XX:InitialHeapSize=64m"
"""By default the heap starts with a 64th of the machine's memory, and a third of that is filled before the first
collection."""

SECRET = "spark.authenticate.secret"
"""Setting with the secret of a standalone cluster."""

_CLUSTER_CONF = {
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": str(_CLUSTER_PARTITIONS),
}


def session_conf(settings: SparkSettings) -> dict[str, str]:
    """Settings for a session at a Spark Connect server."""
    return {**SQL_CONF, "spark.sql.shuffle.partitions": str(_CLUSTER_PARTITIONS), **settings.conf}


def driver_conf(settings: SparkSettings, sockets: Path, java_options: Sequence[str]) -> dict[str, str]:
    """Settings for a JVM that is started here. `sockets`: a directory for unix sockets, whose path is short.
    `java_options` are added to those of every such JVM."""
    tasks = settings.local_tasks
    ours = {
        **SQL_CONF,
        **_DRIVER_CONF,
        **_protection(settings),
        "spark.app.name": settings.name,
        "spark.driver.memory": f"{settings.driver_memory_bytes // MIB}m",
        "spark.local.dir": str(settings.directory),
        "spark.sql.warehouse.dir": (settings.directory / "warehouse").as_uri(),
    }
    if tasks is None:
        ours |= _CLUSTER_CONF
    else:
        ours |= _LOCAL_CONF
        # Its workers have imported what they need.
        daemon = "function_daemon" if settings.functions else "worker_daemon"
        ours |= {
            "spark.python.daemon.module": f"millstream_reduce.spark.{daemon}",
            "spark.sql.shuffle.partitions": str(tasks),
            "spark.python.unix.domain.socket.dir": str(sockets),
        }
    theirs = settings.conf.get(_JAVA_OPTIONS, "")
    options = [*_options(settings), *java_options]
    if _names_collector(theirs):
        options = [option for option in options if not _names_collector(option)]
    joined = " ".join([*(_quoted(option) for option in options), *([theirs] if theirs else [])])
    return {**ours, **settings.conf, _JAVA_OPTIONS: joined}


def _protection(settings: SparkSettings) -> dict[str, str]:
    """Who may talk to the driver and its executors, and what others may read of their data."""
    # A standalone master and its workers get a secret from their operator; elsewhere Spark creates one for each run,
    # which no command line shows.
    if settings.effective_master.startswith("spark://") and SECRET not in settings.conf:
        return {}
    ours = {"spark.authenticate": "true"}
    if settings.encryption:
        ours |= {"spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true"}
    return ours


def _options(settings: SparkSettings) -> list[str]:
    options = [
        # Without it, an OutOfMemoryError kills one of Spark's threads, and the job hangs forever.
        "-XX:+ExitOnOutOfMemoryError",
        # No files in /tmp for tools that look at running JVMs; a killed JVM leaves them behind.
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={settings.directory}",
    ]
    if settings.local_tasks is not None and settings.local_tasks <= _SMALL_MACHINE_TASKS:
        # Half the memory of the default collector, and shorter pauses on two processors.
        options += ["-XX:+UseSerialGC", _SMALL_AT_FIRST, *_OPTIMIZED_LATER]
    return options


def _names_collector(options: str) -> bool:
    """Whether a garbage collector is chosen. A JVM with two of them does not start."""
    return any(option.startswith("-XX:+Use") and option.endswith("GC") for option in options.split())


def _quoted(option: str) -> str:
    """Quoted for Spark's launcher."""
    if not any(character in option for character in " \t\"'\\"):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
