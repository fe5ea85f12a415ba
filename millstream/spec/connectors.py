"""The description of each kind of source and sink for the pipeline file; the code that opens one is added above.

    SOURCES, SINKS ─► SourceKind, SinkKind: the model of its settings, checks, notes, what it promises

A connector is one object in the folder of its technology, SOURCE or SINK of `millstream_connectors.<name>.connector`,
or in a package of a third party (docs/extending.md). `millstream validate` and every vertex of a pipeline that names
the connector import the module with that object, so the module imports only this one and the modules it names. `open`
and `online_findings` import the modules that a connector works with. Both are called in a thread
(`millstream.importing`).
"""

from collections.abc import Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from millstream import codes
from millstream.limits import FRAME_RECORDS_MAX, IDS_MAX
from millstream.spec.problems import Finding, Path
from millstream.spec.registry import Registry, models_in
from millstream.spec.values import Needed, PositiveDuration, ShapeProblem, SpecModel, Strict, field

S = TypeVar("S", bound=SpecModel)

OnlineFindings: TypeAlias = Coroutine[Any, Any, Sequence[Finding]]
"""A look at an external system, which runs on the event loop."""


class Unfit(Protocol):
    """What in a target does not fit the settings."""

    @property
    def loc(self) -> Path:
        """Place of the setting, below those of the connector."""

    @property
    def what(self) -> str: ...

    @property
    def expected(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A use of a connector in a pipeline on this machine."""

    path: Path
    """Place of its settings in the file."""
    vertex_path: Path
    """Place of its vertex in the file."""
    base_dir: FilePath
    """The directory of relative paths."""
    replicas: int
    """Number of processes that open it."""
    taken: dict[Hashable, Path] = dataclass_field(default_factory=dict)
    """Resources that connectors of this pipeline claim exclusively, and where in the file."""

    def takes(self, what: Hashable, path: Path) -> bool:
        """Claims a resource; false if another connector has claimed it."""
        return self.taken.setdefault(what, path) == path

    def unfit(self, faults: Iterable[Unfit]) -> list[Finding]:
        """Findings about a target that does not fit the settings."""
        return [Finding(codes.TARGET_UNFIT, (*self.path, *fault.loc), fault.what, fault.expected) for fault in faults]


class GuaranteeId(Enum):
    """How often a record can take effect."""

    TRANSACTIONAL = "exactly-once-transactional"
    IDEMPOTENT = "exactly-once-idempotent"
    POSITION = "exactly-once-position"
    RECORD_IDS = "exactly-once-ids"
    BY_FUNCTION = "exactly-once-by-function"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    NO_PROMISE = "no-promise"
    NO_TARGET = "no-target"


Demand = Literal["exactlyOnce", "atLeastOnce"]
"""The guarantees that a pipeline may require of a source or a sink."""

_HOLDS: Mapping[Demand, frozenset[GuaranteeId]] = {
    "exactlyOnce": frozenset(
        (
            GuaranteeId.TRANSACTIONAL,
            GuaranteeId.IDEMPOTENT,
            GuaranteeId.POSITION,
            GuaranteeId.RECORD_IDS,
            # The function says at the start whether it does; what it does not do is refused then.
            GuaranteeId.BY_FUNCTION,
        )
    ),
    "atLeastOnce": frozenset(GuaranteeId) - {GuaranteeId.AT_MOST_ONCE, GuaranteeId.NO_PROMISE, GuaranteeId.NO_TARGET},
}


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee of a source or a sink."""

    id: GuaranteeId
    """Its id."""
    sentence: str
    """The guarantee and how it is achieved, as a sentence."""

    def holds(self, demand: Demand) -> bool:
        """Whether it is at least the required one."""
        return self.id in _HOLDS[demand]

    def demand_problems(self, demand: Demand | None, loc: tuple[str, ...], holding: str) -> Iterator[ShapeProblem]:
        """A problem if it is less than the guarantee required at `loc`. `holding`: what would be sufficient."""
        if demand is None or self.holds(demand):
            return
        what = f"`guarantee: {demand}` is not possible here: {self.sentence}"
        yield ShapeProblem(codes.GUARANTEE_NOT_HELD, loc, what, holding)


class Connector(Generic[S]):
    """A kind of source or sink."""

    model: type[S]
    """The model of its settings, which are under its name in the pipeline file. A `Program` runs a user's program."""
    meaning: str
    """A line for the reference of the pipeline file."""
    promise: Guarantee
    """Its general guarantee, for lists; `guarantee` returns the one for given settings."""
    packages: ClassVar[Mapping[str, str]] = {}
    """Modules that it imports when it is opened and that may be missing, each with the argument of `pip install`."""

    encoded = False
    """Whether values may be bytes in another encoding, which `format` can name."""

    keys_encoded = False
    """Whether keys may be such bytes, too, so that `keyFormat` can name their encoding."""

    def needs(self, *loc: str) -> Iterator[Needed]:
        """The same, at this place. What only some settings need, these say themselves (`SpecModel.needs`)."""
        yield from (Needed(module, package, loc) for module, package in self.packages.items())

    def unencoded(self, settings: S) -> str | None:
        """The required settings, if these settings prevent a `format`; None if they do not."""
        return None

    def keys_unencoded(self, settings: S) -> str | None:
        """As `unencoded`, for keys."""
        return None

    def local_findings(self, settings: S, place: Place) -> Iterator[Finding]:
        """What this machine lacks for it: files, directories, ports. Changes nothing, and connects to no other
        machine."""
        yield from ()

    def online_findings(self, settings: S, place: Place) -> OnlineFindings:
        """Problems with the external system: address, credentials, rights, topics and tables, for `validate --online`.
        Changes nothing. It has limited time, and raises the same errors as `open`. The call itself is made in a thread,
        so that it can import modules; what it returns runs on the event loop."""

        async def nothing() -> Sequence[Finding]:
            return ()

        return nothing()

    def notes(self, settings: S, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on valid settings, each with its place; `path` is that of the settings. By default those that the
        settings and the models within them have themselves (`SpecModel.notes`)."""
        for model, place in models_in(settings, path):
            yield from model.notes(place)


IdsCount = Annotated[int, Strict(ge=FRAME_RECORDS_MAX)]
"""A source whose reads return ids for at most that many records each."""


@dataclass(frozen=True, slots=True)
class IdBounds:
    """How many ids of a source's records are remembered, and for how long."""

    ttl_s: float
    """How long an id is remembered, in seconds."""
    ids_max: int
    """Maximum number, for all partitions together."""


class RemembersIds(SpecModel):
    """The settings of a source that gives ids to records, and may repeat them with the same ids."""

    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a record is remembered, so that a repeated record has no effect. Duration of at least 1s,
    default 24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of record ids that are remembered, over all partitions; beyond it the source waits until the
    oldest expire. The pipeline's broker reserves 48 bytes for each id; a remembered id takes 30 bytes of memory."""

    @property
    def id_bounds(self) -> IdBounds | None:
        """The same; None if records have no ids with the other settings."""
        return IdBounds(self.id_ttl_s, self.ids_max)


class SourceKind(Connector[S]):
    """A kind of source."""

    has_headers = True
    """Whether its records may have headers."""
    untrusted = False
    """Whether other systems set the event times: `watermark.maxFuture` then applies to times far ahead of the clock."""
    keys_are_bytes = False
    """Whether keys of its records may be any bytes, which `millstream.keys` converts to text."""
    ends: ClassVar[str] = "never"
    """When it ends by itself, for lists; `bounded` returns it for given settings."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Its name up to version 0.2. Without it, one time in the future would close all windows.
        cls.untrusted = vars(cls).get("strangers", cls.untrusted)

    def guarantee(self, settings: S) -> Guarantee:
        """How often a record takes effect, whatever fails."""
        return self.promise

    def bounded(self, settings: S) -> bool | None:
        """Whether it ends by itself; None if that is known only at run time."""
        return None

    def may_give_keys(self, settings: S) -> bool:
        """Whether its records may have keys that do not come from their values."""
        return True

    def id_bounds(self, settings: S) -> IdBounds | None:
        """How many ids are remembered, for a source that may repeat records with the same ids; None if records have no
        ids. By default as in settings that are `RemembersIds`."""
        return settings.id_bounds if isinstance(settings, RemembersIds) else None

    def address(self, settings: S, partition: int) -> tuple[str, int] | None:
        """Host and port on which the lane of a partition listens, if they are fixed."""
        return None


@dataclass(frozen=True, slots=True)
class SinkUse:
    """How a pipeline uses a sink."""

    buffer_records: int
    """Number of records at which the buffer before it is full: the buffer never holds more."""
    envelope: bool
    """Whether it gets the envelope of each record instead of its value."""


class SinkKind(Connector[S]):
    """A kind of sink."""

    asks_for_fallback = False
    """Whether it can itself send a record to the fallback."""

    whole: ClassVar[bool] = False
    """Whether its guarantee also holds at the end of a chain, where records and their ids may differ when they are sent
    again: it accepts whole deliveries, or keeps no position and guarantees nothing that needs one."""

    def guarantee(self, settings: S, *, fallback: bool) -> Guarantee:
        """Its guarantee for records that are sent again. `fallback`: as a fallback, which gets only some records of a
        lane, possibly others when they are sent again."""
        return self.promise

    def subject(self, settings: S) -> str | None:
        """Subject of the values' schema in a registry, by the convention of the target's own clients, if there is
        one."""
        return None

    def key_subject(self, settings: S) -> str | None:
        """As `subject`, of the keys' schema."""
        return None

    def use_problems(self, settings: S, use: SinkUse) -> Iterator[ShapeProblem]:
        """Problems with settings, each valid by itself, for this use of the sink."""
        yield from ()


SOURCES: Registry[SourceKind[SpecModel]] = Registry(
    "millstream.sources",
    "source",
    SourceKind,
    {
        "generator": "millstream_connectors.generator.connector:SOURCE",
        "file": "millstream_connectors.file.connector:SOURCE",
        "http": "millstream_connectors.http.connector:SOURCE",
        "httpPoll": "millstream_connectors.http_poll.connector:SOURCE",
        "sse": "millstream_connectors.sse.connector:SOURCE",
        "websocket": "millstream_connectors.websocket.connector:SOURCE",
        "kafka": "millstream_connectors.kafka.connector:SOURCE",
        "jetstream": "millstream_connectors.jetstream.connector:SOURCE",
        "nats": "millstream_connectors.nats.connector:SOURCE",
        "postgres": "millstream_connectors.postgres.connector:SOURCE",
        "delta": "millstream_connectors.delta.connector:SOURCE",
        "mqtt": "millstream_connectors.mqtt.connector:SOURCE",
        "iceberg": "millstream_connectors.iceberg.connector:SOURCE",
        "pubsub": "millstream_connectors.pubsub.connector:SOURCE",
        "pulsar": "millstream_connectors.pulsar.connector:SOURCE",
        "rabbitmq": "millstream_connectors.rabbitmq.connector:SOURCE",
        "redisStreams": "millstream_connectors.redis_streams.connector:SOURCE",
        "sql": "millstream_connectors.sql.connector:SOURCE",
        "sqs": "millstream_connectors.sqs.connector:SOURCE",
        "udsource": "millstream_connectors.user_defined.connector:SOURCE",
    },
)

SINKS: Registry[SinkKind[SpecModel]] = Registry(
    "millstream.sinks",
    "sink",
    SinkKind,
    {
        "log": "millstream_connectors.log.connector:SINK",
        "blackhole": "millstream_connectors.blackhole.connector:SINK",
        "file": "millstream_connectors.file.connector:SINK",
        "http": "millstream_connectors.http.connector:SINK",
        "kafka": "millstream_connectors.kafka.connector:SINK",
        "sql": "millstream_connectors.sql.connector:SINK",
        "sqs": "millstream_connectors.sqs.connector:SINK",
        "udsink": "millstream_connectors.user_defined.connector:SINK",
        "postgres": "millstream_connectors.postgres.connector:SINK",
        "delta": "millstream_connectors.delta.connector:SINK",
        "iceberg": "millstream_connectors.iceberg.connector:SINK",
        "jetstream": "millstream_connectors.jetstream.connector:SINK",
        "mqtt": "millstream_connectors.mqtt.connector:SINK",
        "bigquery": "millstream_connectors.bigquery.connector:SINK",
        "opensearch": "millstream_connectors.opensearch.connector:SINK",
        "nats": "millstream_connectors.nats.connector:SINK",
        "pubsub": "millstream_connectors.pubsub.connector:SINK",
        "pulsar": "millstream_connectors.pulsar.connector:SINK",
        "rabbitmq": "millstream_connectors.rabbitmq.connector:SINK",
        "redisStreams": "millstream_connectors.redis_streams.connector:SINK",
    },
)


def format_problems(
    registry: Registry[SourceKind[SpecModel]] | Registry[SinkKind[SpecModel]],
    kind: str,
    settings: SpecModel,
    formats: Iterator[tuple[str, object]],
) -> Iterator[ShapeProblem]:
    """Problems with `format` and `keyFormat` beside the settings of that kind."""
    connector = registry.load(kind)
    for name, _ in formats:
        noun = "values" if name == "format" else "keys"
        if not _is_encoded(connector, name):
            able = ", ".join(other for other in registry.names if _is_encoded(registry.load(other), name))
            what = f"{noun} of a {kind} {registry.noun} have no `{name}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, f"a {registry.noun} of {able}; or no `{name}`")
        elif (needed := _unencoded(connector, settings, name)) is not None:
            what = f"{noun} of this {kind} {registry.noun} have no `{name}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, f"{needed}; or no `{name}`")


def _is_encoded(connector: Connector[SpecModel], name: str) -> bool:
    return connector.encoded if name == "format" else connector.keys_encoded


def _unencoded(connector: Connector[SpecModel], settings: SpecModel, name: str) -> str | None:
    return connector.unencoded(settings) if name == "format" else connector.keys_unencoded(settings)
