"""The ahead-of-time cache of Spark's JVM: classes loaded and linked once, mapped at every later start (Java 25).

Above it: the session, and the command that creates the cache. Below it: files. A cache belongs to the exact Java and
Spark that created it, so its name says which; a JVM that finds one for another version does not use it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError
from millstream_reduce.spark.java import Java, cache_directories, find_java, spark_home, writable_cache

JAVA_MIN = 25
"""The first Java that creates such a cache in one run."""
RECORD_TIMEOUT_S = 900.0
"""Time limit for writing it, after the run in which it was recorded: half a minute on an idle machine."""
_FORMAT = "1"
"""Changes when the JVM's options do."""
_QUIET = ["-Xlog:aot*=off", "-Xlog:cds*=off"]


def find_cache(java: Java) -> Path | None:
    """The cache for this Java and the installed Spark; None if it has not been created."""
    if java.major < JAVA_MIN:
        return None
    name = _name(java)
    return next((path for path in (directory / name for directory in cache_directories()) if path.is_file()), None)


def advice() -> str:
    """A message if Spark is about to start without a cache that it could have; otherwise empty."""
    try:
        java = find_java()
        if java.major < JAVA_MIN or find_cache(java) is not None:
            return ""
    except InfrastructureError:
        # The process that starts this one prints the message.
        return ""
    return (
        "note: Spark's start-up cache is missing, so its start takes about 20 s longer each time: `millstream spark "
        "prepare` creates it (once, about a minute, 180 MiB)"
    )


def use_options(cache: Path | None) -> list[str]:
    """JVM options for starting from a cache."""
    return [] if cache is None else [f"-XX:AOTCache={cache}", *_QUIET]


def record_options(path: Path) -> list[str]:
    """JVM options for writing a cache at exit."""
    return [f"-XX:AOTCacheOutput={path}", *_QUIET]


@asynccontextmanager
async def open_recording(java: Java) -> AsyncIterator[Path]:
    """Where to write a cache. At the end of the block it is moved to its place completely, or not at all."""
    if java.major < JAVA_MIN:
        raise InfrastructureError(
            codes.JAVA_UNUSABLE,
            f"an ahead-of-time cache needs Java {JAVA_MIN} or later, and {java.origin} is Java {java.version}; without "
            "one Spark takes twice as long to start. Unset JAVA_HOME to use the Java of `millstream[reduce]`",
        )
    place = writable_cache()
    with tempfile.TemporaryDirectory(prefix="recording-", dir=place) as temporary:
        written = Path(temporary) / "cache"
        yield written
        if not written.is_file():
            raise InfrastructureError(
                codes.SPARK_CACHE,
                "Spark's JVM has ended without writing its ahead-of-time cache; see its messages above",
            )
        os.chmod(written, 0o644)
        os.replace(written, place / _name(java))
    _remove_others(place, _name(java))


def _name(java: Java) -> str:
    home = spark_home()
    jars = sorted((entry.name, entry.stat().st_size) for entry in os.scandir(home / "jars"))
    identity = repr((_FORMAT, str(home), jars, str(java.executable), java.version, platform.machine()))
    return f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.aot"


def _remove_others(place: Path, name: str) -> None:
    """Caches of versions that were installed here before. A user's directory may serve several installations."""
    if place.is_relative_to(sys.prefix):
        for other in place.glob("spark-*.aot"):
            if other.name != name:
                with suppress(OSError):
                    other.unlink()
