"""The pipeline as users write it: `Pipeline`, its vertices and its edges.

Owns the names, types, units and defaults of the file. The parts of a vertex are in `programs`, `sources` and `sinks`
and are re-exported here. Fields have Numaflow's v1alpha1 names wherever Numaflow has the concept. It does not know
files, graphs or processes.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from millstream import codes
from millstream.compression import Compression
from millstream.limits import BUFFER_BYTES_MAX, BUFFER_RECORDS_MAX, BUFFER_USAGE_LIMIT
from millstream.plurals import counted
from millstream.spec import numaflow
from millstream.spec.buffers import InterStepBuffer, compression_in, technology_in
from millstream.spec.edge_names import default_edge_name
from millstream.spec.kinds import KINDS, PlacedEnd, PlacedProgram, VertexKind, VertexUse
from millstream.spec.programs import (
    Backoff,
    CatBuiltin,
    Container,
    EnvVar,
    EventTime,
    EventTimeBuiltin,
    FilterArguments,
    FilterBuiltin,
    NoArguments,
    OnFailure,
    Program,
    RetryStrategy,
    Sql,
    Transformer,
    Udf,
    ValueFormat,
)
from millstream.spec.references import Reference, SecretKey, TextOrReference
from millstream.spec.registry import Choice
from millstream.spec.sinks import FallbackSink, OnSinkFailure, Sink, SinkRetryStrategy
from millstream.spec.sources import OnInvalid, Source
from millstream.spec.spark import Spark
from millstream.spec.tables import TableEdge, Tables, TableVertex
from millstream.spec.values import (
    Duration,
    EdgeName,
    Flag,
    Name,
    Needed,
    NotEmpty,
    PositiveCount,
    PositiveDuration,
    Quantity,
    ShapeProblem,
    SpecModel,
    Strict,
    Text,
    field,
    is_name,
)
from millstream.spec.windows import (
    Early,
    EmptyDir,
    FixedWindow,
    GlobalWindow,
    GroupBy,
    NoStore,
    OnLate,
    PersistentVolumeClaim,
    SessionWindow,
    SlidingWindow,
    Storage,
    Trigger,
    Window,
)

API_VERSION = "millstream.io/v1alpha1"
NUMAFLOW_API_VERSION = numaflow.API_VERSION
KIND = "Pipeline"

PARTITIONS_MAX = 1024
"""Maximum number of partitions of a vertex."""

EdgeKind = Literal["data", "deadLetter", "late"]
OnFuture = Literal["deadLetter", "drop", "stop"]
OnFull = Literal["retryUntilSuccess", "discardLatest"]
Partitions = Annotated[int, Strict(ge=1, le=PARTITIONS_MAX)]
Percent = Annotated[int, Strict(ge=1, le=100)]


class Limits(SpecModel):
    """Limits on records in flight and in buffers, for every vertex of the pipeline."""

    noun = "limits"

    read_batch_size: PositiveCount = 500
    """Maximum number of records in one batch for a UDF."""
    read_timeout_s: PositiveDuration = field(default=1.0, alias="readTimeout")
    """Maximum time to wait for a batch to fill. Duration, default 1s."""
    buffer_max_length: PositiveCount = BUFFER_RECORDS_MAX
    """Maximum number of records in one input buffer (one edge and partition into the vertex). No frame is larger than a
    quarter of the usable part of the buffer. Each writer may exceed the limit by one frame. A lane that closes a cycle
    does not wait for space in it, so records that multiply in a cycle exceed the limit."""
    buffer_max_bytes: Quantity = BUFFER_BYTES_MAX
    """Maximum number of bytes in one input buffer. Default 128 MiB."""
    buffer_usage_limit: Percent = round(BUFFER_USAGE_LIMIT * 100)
    """Percentage of `bufferMaxLength` and `bufferMaxBytes` at which the buffer counts as full. The edge's `onFull` says
    what happens then."""
    concurrency: PositiveCount | None = None
    """Number of records of one lane that a UDF processes concurrently. Default: the function's own setting (in the
    Python SDK, 1,000 for an async function)."""

    @property
    def usable_length(self) -> int:
        """The number of records at which a writer waits."""
        return max(1, self.buffer_max_length * self.buffer_usage_limit // 100)

    @property
    def usable_bytes(self) -> int:
        """The number of bytes at which a writer waits."""
        return max(1, self.buffer_max_bytes * self.buffer_usage_limit // 100)


class VertexLimits(SpecModel):
    """Limits of one vertex. A limit that is not set is the one in the pipeline's `limits`."""

    noun = "limits"

    read_batch_size: PositiveCount | None = None
    """As in `spec.limits`."""
    read_timeout_s: PositiveDuration | None = field(default=None, alias="readTimeout")
    """As in `spec.limits`. Duration."""
    buffer_max_length: PositiveCount | None = None
    """As in `spec.limits`."""
    buffer_max_bytes: Quantity | None = None
    """As in `spec.limits`."""
    buffer_usage_limit: Percent | None = None
    """As in `spec.limits`."""
    concurrency: PositiveCount | None = None
    """As in `spec.limits`."""

    def over(self, base: Limits) -> Limits:
        """The pipeline's limits, overridden by those that this vertex sets."""
        changes = {name: value for name in self.model_fields if (value := getattr(self, name)) is not None}
        return base.model_copy(update=changes)


class TagConditions(SpecModel):
    """The tags that let a message pass."""

    noun = "tags"

    operator: Literal["or", "and", "not"] = "or"
    """`or`: at least one of the values; `and`: all of them; `not`: none of them."""
    values: Annotated[tuple[Text, ...], NotEmpty()]
    """The tags."""


class Conditions(SpecModel):
    """The conditions for a message to take an edge."""

    noun = "conditions"

    tags: TagConditions | None = None
    """Conditions on the tags that the UDF attached to the message. Default: every message passes."""


class Edge(SpecModel):
    """A connection from one vertex to another."""

    noun = "an edge"

    from_: Name = field(alias="from")
    """The vertex that writes."""
    to: Name
    """The vertex that reads. An edge to the map vertex that writes, or to one before it, makes a cycle."""
    name: EdgeName = ""
    """Name of the edge, part of the names of its buffers. Default: `<from>-<to>`; for a dead-letter edge
    `<from>-<to>-dead-letter`; for a late edge `<from>-<to>-late`."""
    kind: EdgeKind = "data"
    """`data`: the output of the vertex. `deadLetter`: records that it gave up on, with the reason. `late`: unchanged
    records that reached a reduce after all their windows had closed."""
    conditions: Conditions | None = None
    """Which messages take this edge; only for `kind: data`. Default: all."""
    on_full: OnFull = "retryUntilSuccess"
    """What happens when the buffer is full: with `retryUntilSuccess` the writer waits; with `discardLatest` the message
    is dropped and counted."""
    chain: Flag | None = None
    """`true`: the edge has no buffer. Its two vertices run as one lane, which commits once, after the last vertex of
    the chain. Only from a source or a map to a map or a sink (docs/explanation/chains.md). `false`: it has a buffer.
    Default: what the `chain` of the pipeline says."""

    @classmethod
    def completed(cls, data: Any) -> Any:
        """The name follows from its ends."""
        if not isinstance(data, Mapping) or data.get("name") is not None:
            return data
        if not all(isinstance(end := data.get(key), str) and is_name(end) for key in ("from", "to")):
            return data
        return {**data, "name": default_edge_name(data)}

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Dead letters and late records have no tags to test."""
        taken = _TAKEN_WHOLE.get(str(data.get("kind")))
        if taken is not None and data.get("conditions"):
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("conditions",), taken, "no conditions")


_TAKEN_WHOLE = {
    "deadLetter": "a dead-letter edge takes every record that its vertex gives up on",
    "late": "a late edge takes every late record of its vertex",
}


class Placement(SpecModel):
    """Where the replicas of a vertex run."""

    noun = "a placement"

    process: Literal["shared", "own"] = "shared"
    """`shared`: under `millstream run`, the replica shares a worker with replicas of other vertices. `own`: each
    replica has a worker to itself."""


class Vertex(Choice):
    """One step of the pipeline: exactly one of a source, a UDF or a sink."""

    noun = "a vertex"
    registry = KINDS
    kinds_after = "name"

    name: Name
    """Name of the vertex, part of the name of its stream."""
    partitions: Partitions = 1
    """Number of lanes per input; for a source, a reduce or a map with `state`, the number of its lanes. Records with
    the same keys go to the same partition."""
    replicas: PositiveCount = 1
    """Number of shares of the vertex's work, at most `partitions`. Each replica owns the lanes whose partition modulo
    `replicas` is its number, and may run in its own process."""
    placement: Placement = Placement()
    """Where the replicas run."""
    limits: VertexLimits | None = None
    """Limits that differ from those of the pipeline."""

    _definition: VertexKind[SpecModel] | None = field(default=None, init=False)

    def with_settings(self, key: str, settings: SpecModel) -> Self:
        """Finds the kind of the vertex."""
        given = [name for name, value in settings.members() if value is not None]
        self.__dict__["_definition"] = KINDS.load(key).of(given)
        return super().with_settings(key, settings)

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """A replica without a lane would do nothing."""
        if self.replicas > self.partitions:
            what = f"{self.replicas} replicas cannot share {counted(self.partitions, 'partition')}"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("replicas",), what, "at most `partitions`")
        yield from self.definition.sharing_problems(self.settings, self.partitions, self.replicas)

    @property
    def definition(self) -> VertexKind[SpecModel]:
        """The object of its kind."""
        assert self._definition is not None, "a valid vertex is of a kind"
        return self._definition

    @property
    def kind(self) -> str:
        """The name of its kind: source, map, reduce, sink, or the name that another package gives."""
        return self.definition.name

    @property
    def programs(self) -> tuple[PlacedProgram, ...]:
        """The user's programs."""
        return tuple(self.definition.programs(self.settings))

    @property
    def ends(self) -> tuple[PlacedEnd, ...]:
        """Its sources and sinks."""
        return tuple(self.definition.ends(self.settings))

    @property
    def group_by(self) -> GroupBy | None:
        """How it groups its records; None unless it has windows."""
        return self.definition.group_by(self.settings)

    @property
    def sql(self) -> Sql | None:
        """The query that computes its windows; None where it has none."""
        return self.definition.sql(self.settings)

    @property
    def source(self) -> Source | None:
        """Its settings, for code that handles only sources."""
        return self.settings if isinstance(self.settings, Source) else None

    @property
    def udf(self) -> Udf | None:
        """Its settings, for code that handles only maps and reduces."""
        return self.settings if isinstance(self.settings, Udf) else None

    @property
    def sink(self) -> Sink | None:
        """Its settings, for code that handles only sinks."""
        return self.settings if isinstance(self.settings, Sink) else None


class Metadata(SpecModel):
    """Name and labels of the pipeline."""

    noun = "metadata"

    name: Name
    """Name of the pipeline, the first part of the names of its streams."""
    namespace: Name | None = None
    """Kubernetes namespace."""
    labels: dict[str, str] = field(default_factory=dict)
    """Kubernetes labels."""
    annotations: dict[str, str] = field(default_factory=dict)
    """Kubernetes annotations."""


class IdleSource(SpecModel):
    """Advances the watermark while a source has no data."""

    noun = "idleSource"

    threshold_s: PositiveDuration = field(alias="threshold")
    """Time without data after which a source is idle. Duration."""
    increment_by_s: PositiveDuration = field(alias="incrementBy")
    """How far each step advances the watermark. Duration, at most `threshold`."""
    step_interval_s: Duration = field(default=0.0, alias="stepInterval")
    """Time between steps. Duration. 0s: as often as watermarks are published."""
    init_source_delay_s: Duration | None = field(default=None, alias="initSourceDelay")
    """Time after the start after which a source that has never had data is idle. Duration, at least `threshold`.
    Default: such a source holds the watermark."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a step that is longer than the silence that it represents."""
        if self.increment_by_s > self.threshold_s:
            what = "`incrementBy` is longer than `threshold`"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("incrementBy",), what, "at most `threshold`")
        delay_s = self.init_source_delay_s
        if delay_s is not None and delay_s < self.threshold_s:
            what = "`initSourceDelay` is shorter than `threshold`"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("initSourceDelay",), what, "at least `threshold`")


class Watermark(SpecModel):
    """How event time advances."""

    noun = "watermark"

    disabled: Flag = False
    """Publishes no watermarks, so no record is ever late. Not with a reduce, whose windows would never close."""
    max_delay_s: Duration = field(default=0.0, alias="maxDelay")
    """How far the watermark of a source lane stays behind its newest event time. Records that are further out of order
    are late. Duration, default 0s."""
    max_future_s: PositiveDuration | None = field(default=None, alias="maxFuture")
    """How far ahead of the clock the event time of a source's record may be, after its transformer. `onFuture` applies
    to records beyond that. Duration. Default: no limit for generators and files, and 5m for every other source, because
    other systems set its times."""
    on_future: OnFuture | None = field(default=None, alias="onFuture")
    """What happens to a record whose event time is beyond `maxFuture`: `deadLetter`, `drop` (counted) or `stop`.
    Default: `deadLetter` if the source has a dead-letter edge, else `drop`."""
    idle_source: IdleSource | None = None
    """What happens while a source has no data. Default: the watermark waits."""


class Logging(SpecModel):
    """What Millstream's messages may show."""

    noun = "logging"

    values: Flag = True
    """Whether a message about a record shows the beginning of its value. The function's own errors and logs are not
    changed. Default true."""


class PipelineSpec(SpecModel):
    """The vertices, the edges, and settings for all of them."""

    noun = "spec"

    vertices: Annotated[tuple[Vertex, ...], NotEmpty()]
    """The steps of the pipeline."""
    edges: tuple[Edge, ...] = ()
    """The connections between vertices."""
    chain: Flag | None = None
    """`true`: every edge to a map that can be chained is chained, unless it has `chain: false`. `false`: only edges
    with `chain: true` are. Default: an edge to a map is chained if both ends have one partition, the map has neither
    limits for its buffer nor a dead-letter edge, and a source before it continues from a position. An edge to a sink is
    chained only if it says so itself (docs/explanation/chains.md)."""
    limits: Limits = Limits()
    """Limits for every vertex."""
    watermark: Watermark = Watermark()
    """How event time advances."""
    inter_step_buffer: InterStepBuffer | None = None
    """The technology of the buffers between vertices, `jetstream: {}` (the default), `redis: {}` or one of a package,
    and how the records in them are compressed: `compression: {type: lz4}` (the default), `zstd`, `gzip` or `none`.
    Records that hardly get smaller are stored as they are."""
    spark: Spark | None = None
    """The Spark that computes windows. Default: a driver that the pipeline starts on this machine."""
    logging: Logging = Logging()
    """What log messages may show."""

    @property
    def buffer_technology(self) -> str:
        """The name of the buffer technology."""
        return technology_in(self.inter_step_buffer)

    @property
    def compression(self) -> Compression:
        """How stored frames are compressed."""
        return compression_in(self.inter_step_buffer)

    @property
    def tables(self) -> Tables:
        """The tables of the vertices."""
        return Tables(
            [
                TableVertex(
                    vertex.name,
                    vertex.key,
                    vertex.definition.tables(vertex.settings),
                    not vertex.definition.has_input,
                    vertex.definition.bounded(vertex.settings) is True,
                )
                for vertex in self.vertices
            ],
            [TableEdge(edge.name, edge.from_, edge.to, edge.on_full == "discardLatest") for edge in self.edges],
        )

    def needs(self) -> Iterator[Needed]:
        """The package of the compression."""
        if self.compression is Compression.ZSTD:
            yield Needed("zstandard", "millstream[zstd]", ("interStepBuffer", "compression", "type"))

    def _keyless(self, reader: str) -> list[str]:
        """The sources whose records reach a vertex without keys, as far as is known."""
        vertices, tables = {vertex.name: vertex for vertex in self.vertices}, self.tables
        seen, open_ = {reader}, [reader]
        while open_:
            name = open_.pop()
            if name == reader or vertices[name].definition.may_give_keys(vertices[name].settings) is None:
                read = tables.edge_names(name)
                into = {
                    edge.from_
                    for edge in self.edges
                    if edge.to == name and edge.from_ in vertices and edge.name not in read
                }
                open_ += into - seen
                seen |= into
        return [
            name
            for name in vertices
            if name in seen - {reader} and vertices[name].definition.may_give_keys(vertices[name].settings) is False
        ]

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Combinations that cannot work, such as windows without watermarks or a file larger than its buffer."""
        if self.watermark.disabled and any(vertex.definition.has_windows for vertex in self.vertices):
            what = "without watermarks, the windows of a reduce never close"
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, ("watermark", "disabled"), what, "`disabled: false`, or no `groupBy`"
            )
        yield from self.tables.problems()
        for index, vertex in enumerate(self.vertices):
            limits = (vertex.limits or VertexLimits()).over(self.limits)
            dead_letters = any(edge.to == vertex.name and edge.kind == "deadLetter" for edge in self.edges)
            into = next(
                (number for number, edge in enumerate(self.edges) if edge.chain and edge.to == vertex.name), None
            )
            use = VertexUse(
                limits.usable_length,
                dead_letters,
                chained=into is not None,
                partitions=vertex.partitions,
                keyless=self._keyless(vertex.name) if vertex.definition.remembers(vertex.settings) else (),
            )
            if into is not None and (why := vertex.definition.chain_problem(vertex.settings)) is not None:
                loc = ("edges", into, "chain")
                yield ShapeProblem(codes.EDGE_NOT_CHAINED, loc, why, "no `chain`, so that the edge has a buffer")
            for problem in vertex.definition.use_problems(vertex.settings, use):
                yield problem._replace(loc=("vertices", index, *problem.loc))


class Pipeline(SpecModel):
    """The whole file."""

    noun = "a pipeline"

    api_version: Literal["millstream.io/v1alpha1", "numaflow.numaproj.io/v1alpha1"]
    """`millstream.io/v1alpha1`, or Numaflow's `numaflow.numaproj.io/v1alpha1`."""
    kind: Literal["Pipeline"]
    """`Pipeline`."""
    metadata: Metadata
    """Name and labels of the pipeline."""
    spec: PipelineSpec
    """Vertices, edges and settings."""

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    def vertex(self, name: str) -> Vertex:
        """The vertex of that name. Errors: KeyError."""
        for vertex in self.spec.vertices:
            if vertex.name == name:
                return vertex
        raise KeyError(name)

    def limits_of(self, vertex: Vertex) -> Limits:
        """The limits of a vertex and of the buffers of the edges into it."""
        base = self.spec.limits
        return base if vertex.limits is None else vertex.limits.over(base)

    def concurrency_of(self, vertex: Vertex) -> int | None:
        """Number of records of one lane that the vertex's UDF processes concurrently; None if the function decides."""
        own = vertex.definition.concurrency(vertex.settings)
        return own or self.limits_of(vertex).concurrency


__all__ = [
    "API_VERSION",
    "KIND",
    "NUMAFLOW_API_VERSION",
    "PARTITIONS_MAX",
    "Backoff",
    "CatBuiltin",
    "Conditions",
    "Container",
    "Early",
    "Edge",
    "EdgeKind",
    "EmptyDir",
    "EnvVar",
    "EventTime",
    "EventTimeBuiltin",
    "FallbackSink",
    "FilterArguments",
    "FilterBuiltin",
    "FixedWindow",
    "GlobalWindow",
    "GroupBy",
    "IdleSource",
    "Limits",
    "Metadata",
    "NoArguments",
    "NoStore",
    "OnFailure",
    "OnFull",
    "OnFuture",
    "OnInvalid",
    "OnLate",
    "OnSinkFailure",
    "PersistentVolumeClaim",
    "Pipeline",
    "PipelineSpec",
    "Program",
    "Reference",
    "RetryStrategy",
    "SecretKey",
    "SessionWindow",
    "Sink",
    "SinkRetryStrategy",
    "SlidingWindow",
    "Source",
    "Spark",
    "Sql",
    "Storage",
    "TagConditions",
    "TextOrReference",
    "Transformer",
    "Trigger",
    "Udf",
    "ValueFormat",
    "Vertex",
    "VertexLimits",
    "Watermark",
    "Window",
    "default_edge_name",
]
