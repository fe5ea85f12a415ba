"""What the pipeline file needs to know of each kind of source and sink; how one is opened is added above.

    SOURCES, SINKS ─► SourceKind, SinkKind: the model of its settings, checks, notes, what it promises

A connector is one object, and lives in a folder of its own: `millstream_reader.sources.<name>`,
`millstream_writer.sinks.<name>`, or a package that somebody else has written (docs/extending.md). Modules with such an
object are imported by `millstream validate` and by every vertex of a pipeline that names it, so they import nothing
but what this page offers; what a connector works with is imported when it is opened.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Generic, TypeVar

from millstream.spec.faults import Finding, Path
from millstream.spec.registry import Registry
from millstream.spec.values import ShapeFault, SpecModel

S = TypeVar("S", bound=SpecModel)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pipeline uses a connector, and what this machine has there."""

    path: Path
    """Of its settings, in the file."""
    vertex_path: Path
    """Of its vertex, in the file."""
    base_dir: FilePath
    """Where relative paths start."""
    replicas: int
    """Processes that open it."""
    taken: dict[Hashable, Path] = field(default_factory=dict)
    """What connectors of this pipeline have for themselves alone, and the places in the file that say so."""

    def takes(self, what: Hashable, path: Path) -> bool:
        """Whether it can have that for itself alone: another connector has not taken it."""
        return self.taken.setdefault(what, path) == path


class Connector(Generic[S]):
    """A kind of source or of sink."""

    model: type[S]
    """Of its settings: what stands under its name in the pipeline file. One that is a `Program` runs a program of the
    user's."""
    meaning: str
    """A line for the reference of the pipeline file."""
    packages: Mapping[str, str] = {}
    """Modules that it imports when it is opened and that may be absent, each with what `pip install` takes."""

    def local_findings(self, settings: S, place: Place) -> Iterator[Finding]:
        """What this machine lacks for it: files, directories, ports. Nothing is changed, nobody else is asked."""
        yield from ()

    def notes(self, settings: S, path: Path) -> Iterator[tuple[Path, str]]:
        """What to know about valid settings, each with its place; `path` is that of the settings."""
        yield from ()


class GuaranteeId(Enum):
    """How often a record can take effect in the target."""

    TRANSACTIONAL = "exactly-once-transactional"
    IDEMPOTENT = "exactly-once-idempotent"
    AT_LEAST_ONCE = "at-least-once"
    NO_TARGET = "no-target"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The promise of one sink."""

    id: GuaranteeId
    """Which promise."""
    sentence: str
    """The promise and how it is kept, for people."""


@dataclass(frozen=True, slots=True)
class SinkUse:
    """How a pipeline uses a sink."""

    buffer_records: int
    """Records at which the buffer before it is full: it can have no more of them in hand."""
    envelope: bool
    """Whether it gets the envelope of each record instead of its value."""


class SinkKind(Connector[S]):
    """A kind of sink."""

    asks_for_fallback = False
    """Whether it may send a record to the fallback by itself."""

    def guarantee(self, settings: S, *, fallback: bool) -> Guarantee:
        """What it promises about records that have to be sent again. `fallback`: to a lane of which it gets some
        records only, maybe others when they are sent again."""
        raise NotImplementedError

    def use_faults(self, settings: S, use: SinkUse) -> Iterator[ShapeFault]:
        """What is wrong with settings, each valid by itself, where the sink is used like that."""
        yield from ()


SINKS: Registry[SinkKind[SpecModel]] = Registry(
    "millstream.sinks",
    "sink",
    SinkKind,
    {
        "log": "millstream_writer.sinks.log.connector:LOG",
        "blackhole": "millstream_writer.sinks.blackhole.connector:BLACKHOLE",
        "file": "millstream_writer.sinks.file.connector:FILE",
        "http": "millstream_writer.sinks.http.connector:HTTP",
        "udsink": "millstream_writer.sinks.udsink.connector:UDSINK",
    },
)


def lacks(connector: Connector[S]) -> Iterator[tuple[str, str]]:
    """What a connector needs and this machine does not have, each with the remedy."""
    for module, package in connector.packages.items():
        if find_spec(module) is None:
            yield f"needs the package {module}, which is not installed", f"`pip install '{package}'`"
