"""How Spark's JVM is started: what Spark's launcher says, asked once and remembered.

The launcher is a JVM of its own that does nothing but put a command together. What it answers depends on the settings
that decide how Java is started, on variables of Spark's and on the files of its configuration, so the answer is kept
for the next start under the digest of all these, with the other files that an installation makes once.

Above it: whoever starts Spark's JVM. Below it: files. It starts nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import EnvironmentFault
from millstream_reduce.spark.java import Java, cache_directories, spark_home, writable_cache

_MAIN_CLASS = "org.apache.spark.deploy.SparkSubmit"
_ANSWERS_MAX = 16
"""Kept in one directory; the oldest go."""
_DIRECTORY = "/directory-of-the-driver"
"""Stands for it in what is asked and kept: it differs from pipeline to pipeline."""
_READ_BY_LAUNCHER = ("SPARK_", "HADOOP_", "YARN_", "JAVA_", "JDK_", "LD_LIBRARY_PATH")
"""Beginnings of variables."""

AskLauncher = Callable[[Sequence[str]], Awaitable[list[str]]]
"""Runs the launcher with these arguments of Java's, and gives the command that it answers."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the launcher is to put together."""

    java: Java
    master: str
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    directory: Path
    """The driver's own, which settings may name."""

    def arguments(self) -> list[str]:
        """Of the launcher, with a word in place of the driver's directory."""
        # Others do not decide how Java is started, and need not be kept.
        decisive = {name: value for name, value in self.conf.items() if name.startswith("spark.driver.")}
        options = [part for name, value in decisive.items() for part in ("--conf", f"{name}={value}")]
        told = [_MAIN_CLASS, "--master", self.master, *options, "pyspark-shell"]
        return [argument.replace(str(self.directory), _DIRECTORY) for argument in told]

    def digest(self) -> str:
        """Of all that the answer depends on."""
        variables = {
            name: value
            for name, value in self.environment.items()
            if name.startswith(_READ_BY_LAUNCHER) and str(self.directory) not in value
        }
        folder = Path(self.environment.get("SPARK_CONF_DIR") or spark_home() / "conf")
        files = []
        with suppress(OSError):
            files = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder))
        launcher = launcher_jar()
        identity = (self.arguments(), sorted(variables.items()), str(folder), files, str(launcher), self.java)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def launcher_jar() -> Path:
    """Spark's launcher."""
    return next((spark_home() / "jars").glob("spark-launcher_*.jar"))


async def java_arguments(question: Question, ask: AskLauncher) -> list[str]:
    """Arguments of Java's up to the main class, that included."""
    name = f"launch-{question.digest()}.json"
    answer = _remembered(name)
    if answer is None:
        _, *arguments = await ask(question.arguments())
        answer = arguments[: arguments.index(_MAIN_CLASS) + 1]
        _remember(name, answer)
    return [argument.replace(_DIRECTORY, str(question.directory)) for argument in answer]


def _remembered(name: str) -> list[str] | None:
    for directory in cache_directories():
        with suppress(OSError, ValueError):
            answer: list[str] = json.loads((directory / name).read_text(encoding="utf-8"))
            return answer
    return None


def _remember(name: str, answer: list[str]) -> None:
    """Keep it where that is possible; without it the next start takes a little longer."""
    with suppress(OSError, EnvironmentFault):
        place = writable_cache()
        # Only for who runs it: options of Java's may hold passwords. Several processes may do this at once.
        descriptor, temporary = tempfile.mkstemp(dir=place)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(temporary, place / name)
        for old in sorted(place.glob("launch-*.json"), key=lambda path: path.stat().st_mtime)[:-_ANSWERS_MAX]:
            old.unlink(missing_ok=True)
