"""What the pipeline file and the graph need to know of each kind of vertex; how its lanes are opened is added above.

    KINDS ─► VertexKind: the model of its settings, its ends, its lanes, its programs, its checks, its drawing

A kind is one object in a module of its own: `millstream_worker.kinds.<name>`, or in a package that others have
written (docs/extending.md). Modules with such an object are imported by `millstream validate` and by every worker of a
pipeline that names it, so they import nothing but what this page offers; what lanes work with is imported when one is
opened.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from millstream.spec.connectors import Guarantee, IdBounds
from millstream.spec.problems import Finding, Path
from millstream.spec.programs import Program, RetryStrategy, Sql
from millstream.spec.registry import Registry
from millstream.spec.sinks import FallbackSink, SinkRetryStrategy
from millstream.spec.sources import OnInvalid, Source
from millstream.spec.values import ShapeProblem, SpecModel
from millstream.spec.windows import GroupBy
from millstream.statistics import LaneReport

S = TypeVar("S", bound=SpecModel)


@dataclass(frozen=True, slots=True)
class PlacedProgram:
    """A program of the user's, and where the settings of its vertex name it."""

    role: str
    """What it is to the vertex: udf, transformer, source, sink or fallback."""
    path: Path
    """In the settings."""
    program: Program
    beside: bool = True
    """Whether a worker of the vertex starts it or calls it; otherwise another process does, such as Spark."""


@dataclass(frozen=True, slots=True)
class PlacedEnd:
    """A source or a sink, and where the settings of its vertex name it."""

    path: Path
    """In the settings."""
    end: Source | FallbackSink


@dataclass(frozen=True, slots=True)
class VertexUse:
    """How a pipeline uses a vertex."""

    buffer_records: int
    """Records at which a buffer before it is full."""
    dead_letters: bool
    """Whether an edge with dead letters leads to it."""
    chained: bool = False
    """Whether the edge to it has no buffer."""


class VertexKind(Generic[S]):
    """A kind of vertex. Methods that take `written` are given settings as they are in the file, which may be wrong."""

    name: str
    """What people read: in displays, metrics and messages."""
    model: type[S]
    """Of its settings: what stands under its key in the pipeline file."""
    meaning: str
    """A line for the reference of the pipeline file."""
    has_input: ClassVar[bool] = True
    """Whether it reads edges. One that reads none is a source: it gives way to other work and reads ahead of it."""
    has_output: ClassVar[bool] = True
    """Whether it writes data edges. One that writes none is a sink."""
    has_windows: ClassVar[bool] = False
    """Whether it keeps records until watermarks pass: it needs an engine, and a place for the records."""
    lane_input: ClassVar[str | None] = None
    """What the one lane of a partition reads: `SOURCE_INPUT` for no edge, `WINDOW_INPUT` for all of them. None: each
    edge into the vertex has lanes of its own."""
    may_lead_chain: ClassVar[bool] = False
    """Whether a vertex behind it may run in its lanes, without a buffer between them."""
    may_follow_in_chain: ClassVar[bool] = False
    """Whether it may run in the lanes of the vertex before it."""
    is_paced: ClassVar[bool] = False
    """Whether its lanes commit often without output: then no more often than watermarks are published."""
    reports: ClassVar[frozenset[LaneReport]] = frozenset()
    """What metrics of its lanes say beside what those of all lanes say."""
    drawn: ClassVar[tuple[str, str]] = ("[", "]")
    """The brackets of its shape in Mermaid."""

    def of(self, given: Collection[str]) -> "VertexKind[Any]":
        """The kind that settings of this model make it, by the names of the members that have a value."""
        return self

    def contents(self, settings: S) -> str:
        """What it does, for drawings."""
        return ""

    def programs(self, settings: S) -> Iterator[PlacedProgram]:
        """The user's programs."""
        if isinstance(settings, Program):
            yield PlacedProgram("udf", (), settings)

    def ends(self, settings: S) -> Iterator[PlacedEnd]:
        """The sources and sinks."""
        yield from ()

    def bounded(self, settings: S) -> bool | None:
        """Whether it ends when its inputs have ended; None where that shows only while it runs."""
        return True

    def id_bounds(self, settings: S) -> IdBounds | None:
        """What its lanes remember of ids, which are committed with what they belong to; None: nothing."""
        return None

    def strangers(self, settings: S) -> bool:
        """Whether its records get their event times from outside: one far ahead of the clock is held back."""
        return False

    def on_invalid(self, settings: S) -> OnInvalid | None:
        """What becomes of input that cannot be read; None: as there is a dead-letter edge or not."""
        return None

    def concurrency(self, settings: S) -> int | None:
        """Records of one lane that its program works on at once, where the settings say so."""
        return None

    def retry(self, settings: S) -> RetryStrategy | SinkRetryStrategy | None:
        """What happens to a record that it fails on; None where it cannot fail on one."""
        return None

    def group_by(self, settings: S) -> GroupBy | None:
        """How it groups records into windows; None where it has none."""
        return None

    def sql(self, settings: S) -> Sql | None:
        """The query that computes its windows; None where it has none."""
        return None

    def guarantees(self, settings: S) -> Iterator[tuple[str, Guarantee]]:
        """What it promises about records that have to be sent again, each with what of the vertex it speaks of: empty
        for the vertex itself."""
        yield from ()

    def guarantees_in_chain(self, settings: S) -> Iterator[tuple[str, Guarantee]]:
        """What it promises where it follows in a chain."""
        return self.guarantees(settings)

    def chain_problem(self, settings: S) -> str | None:
        """Why a vertex with valid settings cannot follow in a chain; None where it can."""
        return None

    def dead_letters(self, written: Mapping[str, Any], watermark: Mapping[str, Any]) -> bool:
        """Whether it may give up on a record, where it has an edge for those. `watermark`: the pipeline's, as it is
        written."""
        return False

    def dead_letters_asked(self, written: Mapping[str, Any]) -> Iterator[Path]:
        """Where the settings ask for a dead-letter edge."""
        yield from ()

    def late_asked(self, written: Mapping[str, Any]) -> Path | None:
        """Where the settings ask for an edge for late records; None where they do not."""
        return None

    def sharing_problems(self, settings: S, partitions: int, replicas: int) -> Iterator[ShapeProblem]:
        """What is wrong with valid settings of a vertex with so many partitions and replicas. Places are those in the
        vertex."""
        yield from ()

    def use_problems(self, settings: S, use: VertexUse) -> Iterator[ShapeProblem]:
        """What is wrong with valid settings where the vertex is used like that. Places are those in the vertex."""
        yield from ()

    def local_findings(self, settings: S, path: Path) -> Iterator[Finding]:
        """What this machine lacks for it, beside its programs, sources and sinks. `path`: of the settings."""
        yield from ()

    def notes(self, settings: S, path: Path) -> Iterator[tuple[Path, str]]:
        """What to know about valid settings, each with its place. `path`: of the settings."""
        yield from ()


KINDS: Registry[VertexKind[SpecModel]] = Registry(
    "millstream.kinds",
    "kind of vertex",
    VertexKind,
    {
        "source": "millstream_worker.kinds.source:SOURCE",
        "udf": "millstream_worker.kinds.map:MAP",
        "sink": "millstream_worker.kinds.sink:SINK",
    },
)


def on_failure_of(written: Any, member: str = "") -> Any:
    """`onFailure` of settings with a program, or of a member that is one, as it is written; "" when it is not given."""
    settings = written.get(member) if member and isinstance(written, Mapping) else written
    strategy = settings.get("retryStrategy") if isinstance(settings, Mapping) else None
    on_failure = strategy.get("onFailure") if isinstance(strategy, Mapping) else None
    return "" if on_failure is None else on_failure


def program_text(program: Program) -> str:
    """Which program it is, for drawings."""
    if program.container is not None:
        return program.container.image
    return program.python or program.address or " ".join(program.command or ())
