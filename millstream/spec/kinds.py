"""The description of each kind of vertex for the pipeline file and the graph; the code that opens its lanes is added
above.

    KINDS ─► VertexKind: the model of its settings, its ends, its lanes, its programs, its checks, its drawing

A kind is one object in its own module: `millstream_worker.kinds.<name>`, or in a package of a third party
(docs/extending.md). `millstream validate` and every worker of a pipeline that names the kind import the module with
that object, so the module imports only this one and the modules it names. The modules that lanes work with are imported
when one is opened.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from millstream.spec.connectors import Guarantee, IdBounds
from millstream.spec.problems import Finding, Path
from millstream.spec.programs import Program, RetryStrategy, Sql, Table
from millstream.spec.registry import Registry
from millstream.spec.sinks import FallbackSink, SinkRetryStrategy
from millstream.spec.sources import OnInvalid, Source
from millstream.spec.values import ShapeProblem, SpecModel
from millstream.spec.windows import GroupBy
from millstream.statistics import LaneReport

S = TypeVar("S", bound=SpecModel)


@dataclass(frozen=True, slots=True)
class PlacedProgram:
    """A user's program, and its place in the settings of its vertex."""

    role: str
    """Its role in the vertex: udf, transformer, source, sink or fallback."""
    path: Path
    """Place in the settings."""
    program: Program
    beside: bool = True
    """Whether a worker of the vertex starts it or calls it; otherwise another process does, such as Spark."""


@dataclass(frozen=True, slots=True)
class PlacedEnd:
    """A source or a sink, and its place in the settings of its vertex."""

    path: Path
    """Place in the settings."""
    end: Source | FallbackSink


@dataclass(frozen=True, slots=True)
class VertexUse:
    """A vertex in its pipeline."""

    buffer_records: int
    """Number of records at which a buffer before it is full."""
    dead_letters: bool
    """Whether an edge with dead letters leads to it."""
    chained: bool = False
    """Whether the edge to it has no buffer."""
    partitions: int = 1
    """The number of its partitions."""
    keyless: Sequence[str] = ()
    """The sources whose records reach it without keys, as far as is known."""


class VertexKind(Generic[S]):
    """A kind of vertex. Methods with `written` get settings as they are in the file, which may contain errors."""

    name: str
    """Its name in displays, metrics and messages."""
    stored_as: ClassVar[str] = ""
    """The kind whose stored data it continues, if that is another one."""
    model: type[S]
    """The model of its settings, which are under its key in the pipeline file."""
    meaning: str
    """A line for the reference of the pipeline file."""
    has_input: ClassVar[bool] = True
    """Whether it reads edges. One that reads none is a source: it yields to other work and reads ahead of it."""
    has_output: ClassVar[bool] = True
    """Whether it writes data edges. One that writes none is a sink."""
    has_windows: ClassVar[bool] = False
    """Whether it keeps records until watermarks pass: it needs an engine, and storage for the records."""
    lane_input: ClassVar[str | None] = None
    """The input of the one lane of a partition: `SOURCE_INPUT` for no edge, `WINDOW_INPUT` or `ALL_INPUTS` for all of
    them. None: each edge into the vertex has its own lanes."""
    may_lead_chain: ClassVar[bool] = False
    """Whether the vertex after it may run in its lanes, without a buffer between them."""
    may_follow_in_chain: ClassVar[bool] = False
    """Whether it may run in the lanes of the vertex before it."""
    is_paced: ClassVar[bool] = False
    """Whether its lanes often commit without output. They then commit no more often than watermarks are published."""
    reports: ClassVar[frozenset[LaneReport]] = frozenset()
    """The metrics of its lanes in addition to those of all lanes."""
    drawn: ClassVar[tuple[str, str]] = ("[", "]")
    """The brackets of its shape in Mermaid."""

    def of(self, given: Collection[str]) -> "VertexKind[Any]":
        """The kind for settings of this model, by the names of the members that have a value."""
        return self

    def contents(self, settings: S) -> str:
        """A short description for drawings."""
        return ""

    def programs(self, settings: S) -> Iterator[PlacedProgram]:
        """The user's programs."""
        if isinstance(settings, Program):
            yield PlacedProgram("udf", (), settings)

    def takes_arrow(self, settings: S) -> bool:
        """Whether it takes frames from its buffers that have Arrow columns in place of values."""
        return False

    def ends(self, settings: S) -> Iterator[PlacedEnd]:
        """The sources and sinks."""
        yield from ()

    def bounded(self, settings: S) -> bool | None:
        """Whether it ends when its inputs have ended; None if that is known only at run time."""
        return True

    def may_give_keys(self, settings: S) -> bool | None:
        """Whether its records may have keys; None: they have those of its inputs."""
        return True

    def remembers(self, settings: S) -> str:
        """What its lanes keep entries of a state for: `key`, or `lane`; empty if they keep none."""
        return ""

    def has_state(self, settings: S) -> bool:
        """Whether its function may remember something."""
        return bool(self.remembers(settings))

    def kept_bytes(self, settings: S) -> int:
        """Bytes that each of its lanes keeps in its ledger for itself, in a buffer of its own; 0: nothing."""
        return 0

    def tables(self, settings: S) -> Mapping[str, Table]:
        """The tables that it reads, by name."""
        return {}

    def id_bounds(self, settings: S) -> IdBounds | None:
        """How many ids its lanes remember, committed with their records; None if they remember none."""
        return None

    def untrusted(self, settings: S) -> bool:
        """Whether other systems set the event times of its records: `watermark.maxFuture` then applies to times far
        ahead of the clock."""
        return False

    def on_invalid(self, settings: S) -> OnInvalid | None:
        """What happens to input that cannot be read; None if that depends on whether there is a dead-letter edge."""
        return None

    def concurrency(self, settings: S) -> int | None:
        """Number of records of one lane that its program processes concurrently, if the settings contain it."""
        return None

    def retry(self, settings: S) -> RetryStrategy | SinkRetryStrategy | None:
        """What happens to a record on which it fails; None if it cannot fail on one."""
        return None

    def group_by(self, settings: S) -> GroupBy | None:
        """How it groups records into windows; None if it has no windows."""
        return None

    def sql(self, settings: S) -> Sql | None:
        """The query that computes its windows; None if there is none."""
        return None

    def guarantees(self, settings: S) -> Iterator[tuple[str, Guarantee]]:
        """Its guarantees for records that are sent again, each with the part of the vertex that it is for: empty for
        the vertex itself."""
        yield from ()

    def guarantees_in_chain(self, settings: S) -> Iterator[tuple[str, Guarantee]]:
        """Its guarantees if it follows in a chain."""
        return self.guarantees(settings)

    def chain_problem(self, settings: S) -> str | None:
        """Why a vertex with valid settings cannot follow in a chain; None if it can."""
        return None

    def dead_letters(self, written: Mapping[str, Any], watermark: Mapping[str, Any]) -> bool:
        """Whether it may give up on a record, if it has an edge for that. `watermark`: the pipeline's, as written."""
        return False

    def dead_letters_asked(self, written: Mapping[str, Any]) -> Iterator[Path]:
        """Where the settings ask for a dead-letter edge."""
        yield from ()

    def late_asked(self, written: Mapping[str, Any]) -> Path | None:
        """Where the settings ask for an edge for late records; None if they do not."""
        return None

    def sharing_problems(self, settings: S, partitions: int, replicas: int) -> Iterator[ShapeProblem]:
        """Problems with valid settings of a vertex with this number of partitions and replicas. Places are relative to
        the vertex."""
        yield from ()

    def use_problems(self, settings: S, use: VertexUse) -> Iterator[ShapeProblem]:
        """Problems with valid settings for this use of the vertex. Places are relative to the vertex."""
        yield from ()

    def local_findings(self, settings: S, path: Path) -> Iterator[Finding]:
        """What this machine lacks for it, beside its programs, sources and sinks. `path`: of the settings."""
        yield from ()

    def notes(self, settings: S, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on valid settings, each with its place. `path`: of the settings."""
        yield from ()


KINDS: Registry[VertexKind[SpecModel]] = Registry(
    "millstream.kinds",
    "kind of vertex",
    VertexKind,
    {
        "source": "millstream_worker.kinds.source:SOURCE",
        "udf": "millstream_worker.kinds.udf:UDF",
        "sink": "millstream_worker.kinds.sink:SINK",
    },
)


def on_failure_of(written: Any, member: str = "") -> Any:
    """`onFailure` of settings with a program, or of a member with one, as written; "" if it is not given."""
    settings = written.get(member) if member and isinstance(written, Mapping) else written
    strategy = settings.get("retryStrategy") if isinstance(settings, Mapping) else None
    on_failure = strategy.get("onFailure") if isinstance(strategy, Mapping) else None
    return "" if on_failure is None else on_failure


def program_text(program: Program) -> str:
    """A short description of a program, for drawings."""
    if program.container is not None:
        return program.container.image
    return program.python or program.address or " ".join(program.command or ())
