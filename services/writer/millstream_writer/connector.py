"""What a kind of sink is to its author: one object with everything that Millstream has to know about it.

Above it: the pipeline file's models, which find it by its name, and `sinks.opening`, which opens it. Below it: the
kinds of sink, each in a folder of its own. Every program that reads a pipeline imports it, so the libraries of a sink
are imported in its `open`.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, TypeVar

from millstream.record import LaneId, Position
from millstream.spec.connectors import Guarantee, GuaranteeId, SinkKind
from millstream.spec.values import SpecModel

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.udf.protocol import StreamName, UdfClient
    from millstream_writer.known_target import KnownTarget
    from millstream_writer.sink import SinkLane

HeldInstead = Callable[[int, str], Awaitable[str | None]]
"""Describes what the lane's buffer holds at a sequence instead of the named frame; None if it holds that frame."""

S = TypeVar("S", bound=SpecModel)

SinkOpening: TypeAlias = AbstractAsyncContextManager["SinkLane"]
"""A lane's target, open for the lifetime of the context."""


def as_fallback(target: str) -> Guarantee:
    """The guarantee of a sink that keeps a position in its `target` (table, topic, ...) but gets only some of the
    records."""
    what = "at least once: after a crash, records that went to the fallback shortly before may be in its"
    return Guarantee(GuaranteeId.AT_LEAST_ONCE, f"{what} {target} twice")


class EnvelopeForm(Enum):
    """How a sink gets the envelopes of records, if it has to write them."""

    VALUE = "as the value of each record"
    COLUMNS = "as the value of each record, with keys and headers as text, for columns"
    NONE = "it has its own format, or does not use the envelope"


class Encoder(Protocol):
    """Encodes the values of one lane, or its keys."""

    async def encode(self, values: Sequence[bytes]) -> list[bytes | ValueError]:
        """For each value its encoding, or the reason why it has none. The call may be repeated.

        Raises `RetryLaterError` if the registry is away, and `UserError` if there is no schema to write with. In both
        cases nothing was encoded.
        """


@dataclass(frozen=True, slots=True)
class Encoders:
    """The encoders of a lane, for the formats in its settings."""

    values: Encoder | None = None
    keys: Encoder | None = None


@dataclass(frozen=True, slots=True)
class SinkOwner:
    """The owner of one lane, which opens a sink."""

    pipeline: str
    lane: LaneId
    replica: int
    epoch: int
    """Epoch of the lane's mark. An owner with a higher epoch replaces one with a lower epoch."""
    start: Position
    """The lane's mark: the position to continue from."""
    ledger_id: str
    """Id of the vertex's ledger. It changes when the pipeline is started over and positions begin again."""
    base_dir: Path
    """The directory that relative paths in the spec are relative to."""
    clock: Clock
    held_instead: HeldInstead
    edge: str = ""
    """The edge by which the records of the lane come."""
    fallback: bool = False
    """Whether the sink is the lane's fallback, which gets only some of the records."""
    envelope: bool = False
    """Whether the sink gets the envelope of each record as its value."""
    whole: bool = False
    """Whether the lane is at the end of a chain. If it keeps a position, it then has to be a `WholeLane`."""
    encoders: Encoders | None = None
    """Encoders of values and keys, if the sink has a `format` or `keyFormat`."""
    client: UdfClient | None = None
    """The running program of a sink whose settings are a `Program`."""
    committed: Callable[[], Position] | None = None
    """The lane's mark at any later time; None if only `start` is known."""
    known: KnownTarget | None = None
    """Whether the lane has used this target before; None if it is not known (for a fallback, and for kinds of sink
    without a `place`)."""
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    """A new name for each epoch of the lane in a process. A target that has it was taken over by this owner, perhaps by
    an opening whose answer was lost: then the opening is repeated."""

    @property
    def where(self) -> str:
        """The name for messages."""
        return f"{self.pipeline}/{self.lane}"

    @property
    def name(self) -> str:
        """Name of the lane in a target that several lanes share."""
        role = ".fallback" if self.fallback else ""
        return f"{self.lane.vertex}{role}.{self.lane.key}"

    @property
    def stream_name(self) -> StreamName:
        from millstream.udf.protocol import StreamName

        return StreamName(self.pipeline, self.lane.vertex, self.lane.key, self.replica, self.edge)

    def as_fallback(self, *, envelope: bool = False, client: UdfClient | None = None) -> SinkOwner:
        return replace(self, fallback=True, whole=False, envelope=envelope, client=client, known=None)

    @property
    def must_be_known(self) -> bool:
        """Whether the target must have a position of the lane: the lane has used it before."""
        return self.known is not None and self.known.is_known

    @property
    def mark(self) -> Position:
        """The lane's mark now, as far as it is known."""
        return self.start if self.committed is None else self.committed()

    async def note_target(self) -> None:
        """Call when the target has durably stored that this owner has the lane, before the first record is written.

        From then on, `must_be_known` holds for the lane's owners, as long as the settings stay. Raises `FencedError`.
        """
        if self.known is not None:
            await self.known.note()


class SinkConnector(SinkKind[S]):
    """A kind of sink that can be opened."""

    keeps_position_in: ClassVar[str] = ""
    """What of its target keeps the positions of lanes, whatever the settings say (`table`, ...), for messages; empty if
    nothing does."""

    def guarantee(self, settings: S, *, fallback: bool) -> Guarantee:
        return as_fallback(self.keeps_position_in) if fallback and self.keeps_position_in else self.promise

    @abstractmethod
    def open(self, settings: S, owner: SinkOwner) -> SinkOpening:
        """The lane's target, open for the lifetime of the context. Opening fences owners with a lower epoch, if the
        target supports it.

        Raises `UserError` if the user has to change something, `RetryLaterError` if the target is away, in which case
        the opening is repeated until it is there (a lane may also postpone this to its first records), `FencedError` if
        the target knows a higher epoch, and `DamageError` if it is ahead of `owner.start` by records that the lane's
        buffer does not hold.
        """

    def place(self, settings: S) -> str | None:
        """Where the settings say that the target is, as they are written: on another machine, the same text may lead to
        another target.

        None if the sink does not call `SinkOwner.note_target`, or does not refuse a target without a position of the
        lane if `SinkOwner.must_be_known`.
        """
        return None

    def envelope_form(self, settings: S) -> EnvelopeForm:
        """How the sink gets envelopes."""
        return EnvelopeForm.VALUE
