"""What the pipeline file needs to know of each kind of source and sink; how one is opened is added above.

    SOURCES, SINKS ─► SourceKind, SinkKind: the model of its settings, checks, notes, what it promises

A connector is one object, and lives in a folder of its own: `millstream_reader.sources.<name>`,
`millstream_writer.sinks.<name>`, or a package of a third party (docs/extending.md). Modules with such an
object are imported by `millstream validate` and by every vertex of a pipeline that names it, so they import nothing
but what this page offers; what a connector works with is imported when it is opened.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

from millstream import codes
from millstream.limits import FRAME_RECORDS_MAX
from millstream.spec.problems import Finding, Path
from millstream.spec.registry import Registry
from millstream.spec.rules import Strict
from millstream.spec.values import ShapeProblem, SpecModel

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


class GuaranteeId(Enum):
    """How often a record can take effect."""

    TRANSACTIONAL = "exactly-once-transactional"
    IDEMPOTENT = "exactly-once-idempotent"
    POSITION = "exactly-once-position"
    RECORD_IDS = "exactly-once-ids"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    NO_TARGET = "no-target"


Demand = Literal["exactlyOnce", "atLeastOnce"]
"""What a pipeline may ask of a source or a sink."""

_HOLDS: Mapping[Demand, frozenset[GuaranteeId]] = {
    "exactlyOnce": frozenset(
        (GuaranteeId.TRANSACTIONAL, GuaranteeId.IDEMPOTENT, GuaranteeId.POSITION, GuaranteeId.RECORD_IDS)
    ),
    "atLeastOnce": frozenset(GuaranteeId) - {GuaranteeId.AT_MOST_ONCE, GuaranteeId.NO_TARGET},
}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The promise of a source or a sink."""

    id: GuaranteeId
    """Which promise."""
    sentence: str
    """The promise and how it is kept, for people."""

    def holds(self, demand: Demand) -> bool:
        """Whether it is at least what is demanded."""
        return self.id in _HOLDS[demand]

    def demand_problems(self, demand: Demand | None, loc: tuple[str, ...], holding: str) -> Iterator[ShapeProblem]:
        """A problem where it is less than what is demanded at `loc`. `holding`: what would be enough."""
        if demand is None or self.holds(demand):
            return
        what = f"`{demand}` is demanded, and cannot be held: {self.sentence}"
        yield ShapeProblem(codes.GUARANTEE_NOT_HELD, loc, what, holding)


class Connector(Generic[S]):
    """A kind of source or of sink."""

    model: type[S]
    """Of its settings: what stands under its name in the pipeline file. One that is a `Program` runs a program of the
    user's."""
    meaning: str
    """A line for the reference of the pipeline file."""
    promise: Guarantee
    """What it guarantees in general, for lists; `guarantee` says it of settings."""
    packages: ClassVar[Mapping[str, str]] = {}
    """Modules that it imports when it is opened and that may be absent, each with what `pip install` takes."""

    def local_findings(self, settings: S, place: Place) -> Iterator[Finding]:
        """What this machine lacks for it: files, directories, ports. Nothing is changed, and no other machine is
        asked."""
        yield from ()

    async def online_findings(self, settings: S, place: Place) -> Sequence[Finding]:
        """What is wrong with what it talks to: address, credentials, rights, topics and tables. `validate --online`
        asks; nothing is changed there. It is given a time, and raises errors of ours as its `open` does."""
        return ()

    def notes(self, settings: S, path: Path) -> Iterator[tuple[Path, str]]:
        """What to know about valid settings, each with its place; `path` is that of the settings."""
        yield from ()


IdsCount = Annotated[int, Strict(ge=FRAME_RECORDS_MAX)]
"""One read of a source has ids for at most that many records."""


@dataclass(frozen=True, slots=True)
class IdBounds:
    """What of the ids of a source's records is remembered."""

    ttl_s: float
    """For how long."""
    ids_max: int
    """How many at most, all partitions together."""


class SourceKind(Connector[S]):
    """A kind of source."""

    has_headers = True
    """Whether its records may have headers."""
    encoded = False
    """Whether values are bytes in an encoding that others chose, so that `format` can name it."""
    strangers = False
    """Whether event times are chosen outside: one far ahead of the clock is then held back."""
    ends: ClassVar[str] = "never"
    """When it ends by itself, for lists; `bounded` says it of settings."""

    def guarantee(self, settings: S) -> Guarantee:
        """How often a record of it counts, whatever dies."""
        return self.promise

    def bounded(self, settings: S) -> bool | None:
        """Whether it ends by itself; None where that shows only while it runs."""
        return None

    def id_bounds(self, settings: S) -> IdBounds | None:
        """Of a source that may give a record again, and tells so by its id; None of one that gives no ids."""
        return None

    def address(self, settings: S, partition: int) -> tuple[str, int] | None:
        """Host and port on which the lane of a partition listens, where that is fixed."""
        return None


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

    whole: ClassVar[bool] = False
    """Whether what it promises holds at the end of a chain, too, where records and their ids may be others when they
    are sent again: it takes whole deliveries, or keeps no position and promises nothing that needs one."""

    def guarantee(self, settings: S, *, fallback: bool) -> Guarantee:
        """What it promises about records that have to be sent again. `fallback`: to a lane of which it gets some
        records only, maybe others when they are sent again."""
        return self.promise

    def use_problems(self, settings: S, use: SinkUse) -> Iterator[ShapeProblem]:
        """What is wrong with settings, each valid by itself, where the sink is used like that."""
        yield from ()


SOURCES: Registry[SourceKind[SpecModel]] = Registry(
    "millstream.sources",
    "source",
    SourceKind,
    {
        "generator": "millstream_reader.sources.generator.connector:GENERATOR",
        "file": "millstream_reader.sources.file.connector:FILE",
        "http": "millstream_reader.sources.http.connector:HTTP",
        "kafka": "millstream_reader.sources.kafka.connector:KAFKA",
        "jetstream": "millstream_reader.sources.jetstream.connector:JETSTREAM",
        "postgres": "millstream_reader.sources.postgres.connector:POSTGRES",
        "delta": "millstream_reader.sources.delta.connector:DELTA",
        "rabbitmq": "millstream_reader.sources.rabbitmq.connector:RABBITMQ",
        "redisStreams": "millstream_reader.sources.redis_streams.connector:REDIS_STREAMS",
        "sqs": "millstream_reader.sources.sqs.connector:SQS",
        "udsource": "millstream_reader.sources.udsource.connector:UDSOURCE",
    },
)

SINKS: Registry[SinkKind[SpecModel]] = Registry(
    "millstream.sinks",
    "sink",
    SinkKind,
    {
        "log": "millstream_writer.sinks.log.connector:LOG",
        "blackhole": "millstream_writer.sinks.blackhole.connector:BLACKHOLE",
        "file": "millstream_writer.sinks.file.connector:FILE",
        "http": "millstream_writer.sinks.http.connector:HTTP",
        "kafka": "millstream_writer.sinks.kafka.connector:KAFKA",
        "sqs": "millstream_writer.sinks.sqs.connector:SQS",
        "udsink": "millstream_writer.sinks.udsink.connector:UDSINK",
        "postgres": "millstream_writer.sinks.postgres.connector:POSTGRES",
        "delta": "millstream_writer.sinks.delta.connector:DELTA",
        "jetstream": "millstream_writer.sinks.jetstream.connector:JETSTREAM",
        "rabbitmq": "millstream_writer.sinks.rabbitmq.connector:RABBITMQ",
        "redisStreams": "millstream_writer.sinks.redis_streams.connector:REDIS_STREAMS",
    },
)


def lacks(connector: Connector[S]) -> Iterator[tuple[str, str]]:
    """What a connector needs and this machine does not have, each with the remedy."""
    for module, package in connector.packages.items():
        if find_spec(module) is None:
            yield f"needs the package {module}, which is not installed", f"`pip install '{package}'`"
