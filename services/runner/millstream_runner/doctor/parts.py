"""What is installed: Millstream's own parts, the broker's program, extras, Spark with its Java and cache, Go."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from importlib.util import find_spec
from pathlib import Path

from millstream.buffers.registry import technology
from millstream.errors import MillstreamError
from millstream.sandbox import refusal
from millstream.spec.connectors import SINKS, SOURCES
from millstream_runner.doctor.checks import CheckState, Finding, Needs, judged
from millstream_runner.local.prerequisites import existing
from millstream_udf.columns import is_compiled

_TIMEOUT_S = 20.0
_GO_MIN = (1, 24)
_EXTRAS = {
    "millstream[arrow]": ("pyarrow", "functions with `arrow=True`, Parquet"),
    "millstream[avro]": ("fastavro", "values in Avro with a schema registry"),
    "millstream[aws]": ("botocore", "requests that are signed for services of AWS"),
    "millstream[debug]": ("debugpy", "a debugger for functions (`--debug-function`)"),
    "millstream[disk]": ("lmdb", "what functions remember, on disk (`store: disk`)"),
    "millstream[jsonschema]": ("jsonschema_rs", "values that are written with a JSON Schema"),
    "millstream[nkeys]": ("nkeys", "brokers that authenticate users by NKeys or credentials files"),
    "millstream[objects]": ("obstore", "files in object stores, Avro"),
    "millstream[redis]": ("redis", "buffers in Redis or Valkey"),
    "millstream[zstd]": ("zstandard", "buffers that are compressed with zstd"),
    "millstream-udf[typed]": ("msgspec", "typed functions: several times as fast"),
}
"""Extras that no connector names, with the module that shows whether it is installed, and its purpose."""
_OF_REDUCE = ("pyspark", "pandas", "pyarrow", "sqlglot", "fastavro", "zstandard")
_REQUIREMENT = re.compile(r"^([\w.-]+)[^;]*(;.*extra.*)?$")
_TRIED_RECORDS = 1000


def packages(_: Needs) -> Iterator[Finding]:
    """Millstream and the packages that it declares."""
    what = "everything"
    missing = []
    for requirement in requires("millstream") or ():
        match = _REQUIREMENT.match(requirement)
        if match is not None and match[2] is None and _version(match[1]) is None:
            missing.append(match[1])
    ours = {name: _version(name) for name in ("millstream", "millstream-udf")}
    found = ", ".join(f"{name} {number or 'not installed'}" for name, number in ours.items())
    if missing or len(set(ours.values())) > 1:
        found += f"; not installed: {', '.join(missing)}" if missing else ""
        remedy = "install both wheels of one release with pip, which installs their dependencies"
        yield Finding("Millstream", CheckState.MISSING, found, what, remedy)
    else:
        columns = "C" if is_compiled() else "Python, because there was no C compiler when the SDK was installed"
        yield Finding("Millstream", CheckState.OK, f"{found}; columns in {columns}", what)


async def _within(measuring: Awaitable[object]) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        await measuring


def broker(needs: Needs) -> Iterator[Finding]:
    """Starts the broker for a moment, on the disk of the data, and stores some records durably."""
    what = "buffers between the steps"
    place = existing(needs.directory)
    try:
        kept = technology(needs.technology)
        program = _program(needs.technology)
        with tempfile.TemporaryDirectory(prefix="millstream-doctor-", dir=place) as name:
            asyncio.run(_within(kept.raw_limit(Path(name), records=_TRIED_RECORDS, record_bytes=100, fsync=True)))
    except MillstreamError as error:
        yield Finding("Broker", CheckState.MISSING, str(error), what, f"`millstream explain {error.code}` says more")
    except TimeoutError:
        found = f"{program} did not store {_TRIED_RECORDS:,} records within {_TIMEOUT_S:g} s"
        yield Finding("Broker", CheckState.MISSING, found, what, "check whether the disk responds, and try again")
    except OSError as error:
        found = f"cannot be tested in {place}: {error.strerror}"
        yield Finding(
            "Broker", CheckState.MISSING, found, what, "choose a directory that can be written to (`--data-dir`)"
        )
    else:
        yield Finding("Broker", CheckState.OK, program, what)


def _program(key: str) -> str:
    """The server's program and version, or that there is no server. Raises `InfrastructureError` if it is missing."""
    from millstream.ledger.protocol import DurabilityLevel

    with tempfile.TemporaryDirectory(prefix="millstream-doctor-") as name:
        command = technology(key).server(Path(name), durability=DurabilityLevel.FSYNC, port=None, buffers=0).command()
    if not command:
        return f"files of {key}, without a server"
    return _first_line(command[0], "--version") or command[0]


def extras(needs: Needs) -> Iterator[Finding]:
    """The extras that a pipeline may need, including those of all installed kinds of sources and sinks."""
    # The modules and purposes of each extra, once each, in the order in which they are found.
    known = {extra: ({module: None}, {what: None}) for extra, (module, what) in _EXTRAS.items()}
    for registry in (SOURCES, SINKS):
        for name, connector in registry.all():
            for module, extra in connector.packages.items():
                modules, whats = known.setdefault(extra, ({}, {}))
                modules[module] = None
                whats[f"the `{name}` {registry.noun}"] = None
    for extra, (modules, whats) in sorted(known.items()):
        needed = extra in needs.extras
        if not needs.wants(needed):
            continue
        what = ", ".join(whats)
        if missing := _missing(modules):
            yield Finding(extra, needs.lacking(needed), missing, what, f"`pip install '{extra}'`")
        else:
            found = ", ".join(" ".join(filter(None, (module, _version_of(module)))) for module in modules)
            yield Finding(extra, CheckState.OK, found, what)


def _missing(modules: Iterable[str]) -> str:
    """Which of the modules are not installed, in words; empty if all are."""
    missing = [module for module in modules if find_spec(module) is None]
    return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed" if missing else ""


def spark(needs: Needs) -> Iterator[Finding]:
    """Spark, its Java, and the cache that it starts from."""
    if not needs.wants(needs.spark):
        return
    what = "reduces: queries and functions over windows"
    if missing := _missing(_OF_REDUCE):
        remedy = "`pip install 'millstream[reduce]'` installs Spark and a Java (about 1 GB)"
        yield Finding("millstream[reduce]", needs.lacking(needs.spark), missing, what, remedy)
        return
    yield Finding("millstream[reduce]", CheckState.OK, f"Spark {_version('pyspark')}", what)
    from millstream_reduce.spark import aot
    from millstream_reduce.spark.java import find_java

    try:
        java = find_java()
    except MillstreamError as error:
        yield Finding(
            "Java", needs.lacking(needs.spark), str(error), what, "set or unset JAVA_HOME as the message says"
        )
        return
    yield Finding("Java", CheckState.OK, f"{java.version}, {java.origin}", what)
    cache = aot.find_cache(java)
    sooner = "starting Spark in half the time"
    if cache is not None:
        yield Finding("Spark's cache", CheckState.OK, str(cache), sooner)
    elif java.major >= aot.JAVA_MIN:
        remedy = "`millstream spark prepare` creates it, once, in about a minute (180 MiB)"
        yield Finding("Spark's cache", CheckState.WARNING, "not created yet", sooner, remedy)


def go(needs: Needs) -> Iterator[Finding]:
    """The compiler."""
    if not needs.wants(needs.go):
        return
    what = "building functions in Go"
    path = shutil.which("go")
    line = _first_line(path, "version") if path is not None else ""
    numbers = re.search(r"go(\d+)\.(\d+)", line)
    remedy = f"install Go {'.'.join(map(str, _GO_MIN))} or later (go.dev/dl)"
    if numbers is None:
        line = "there is no `go` program on the PATH"
        remedy += "; pipelines run without it once their programs are built"
    elif (int(numbers[1]), int(numbers[2])) >= _GO_MIN:
        remedy = ""
    yield judged("Go", line, what, remedy, needs.lacking(needs.go))


def sandbox(needs: Needs) -> Iterator[Finding]:
    """Whether functions can run in a sandbox; this is tried."""
    if not needs.wants(needs.sandbox):
        return
    what = "functions with `sandbox: strict`"
    why = refusal(strict=True, network=False, limits=frozenset())
    remedy = "" if why is None else "allow user namespaces (docs/security.md), or run such pipelines elsewhere"
    yield judged("Sandbox", why or "functions can be run in one", what, remedy, needs.lacking(needs.sandbox))


def _version_of(module: str) -> str:
    """The version of the distribution that has the module; empty if unknown."""
    names = packages_distributions().get(module, [])
    return (_version(names[0]) or "") if names else ""


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _first_line(program: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter((done.stdout or done.stderr).splitlines()), "").strip()
