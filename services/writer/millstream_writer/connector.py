"""What a kind of sink is to its author: one object that says all that Millstream has to know of it.

Above it: the pipeline file's models, which find it by its name, and `sinks.opening`, which opens it. Below it: the
kinds of sink, each in a folder of its own. It is imported by whatever reads a pipeline, so what a sink works with is
imported in its `open`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from millstream.record import LaneId, Position
from millstream.spec.connectors import Guarantee, GuaranteeId, SinkKind
from millstream.spec.values import SpecModel

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.udf.protocol import StreamName, UdfClient
    from millstream_writer.sink import SinkLane
    from millstream_writer.sinks.encoding import Encoders

HeldInstead = Callable[[int, str], Awaitable[str | None]]
"""What the lane's buffer holds at a sequence instead of the frame of a name, in words; None when it is that frame."""

S = TypeVar("S", bound=SpecModel)


def as_fallback(target: str) -> Guarantee:
    """Of a sink that keeps a position in its `target` (table, topic, ...), where it gets only some of the records."""
    what = "at least once: after a crash, records that went to the fallback shortly before may be in its"
    return Guarantee(GuaranteeId.AT_LEAST_ONCE, f"{what} {target} twice")


class EnvelopeForm(Enum):
    """How a sink gets the envelopes of records, where it is to write them."""

    VALUE = "as the value of each record"
    COLUMNS = "as the value of each record, with keys and headers as text, for columns"
    NONE = "it has its own format, or does not use the envelope"


@dataclass(frozen=True, slots=True)
class SinkOwner:
    """Who opens a sink: one owner of one lane."""

    pipeline: str
    lane: LaneId
    replica: int
    epoch: int
    """Of the lane's mark. An owner with a higher epoch replaces one with a lower."""
    start: Position
    """The lane's mark: where it goes on."""
    ledger_id: str
    """Of the vertex's ledger: another one after the pipeline was started over, when positions begin again."""
    base_dir: Path
    """What relative paths in the spec are relative to."""
    clock: Clock
    held_instead: HeldInstead
    fallback: bool = False
    """The sink is the lane's fallback: it gets some of the records only."""
    envelope: bool = False
    """The sink gets the envelope of each record as its value."""
    whole: bool = False
    """The lane is at the end of a chain: it has to be a `WholeLane`, if it keeps a position."""
    encoders: Encoders | None = None
    """Of values and keys, where the sink has a `format` or `keyFormat`."""
    client: UdfClient | None = None
    """The running program of a sink whose settings are a `Program`."""
    committed: Callable[[], Position] | None = None
    """The lane's mark at any later time; None if only `start` is known."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.pipeline}/{self.lane}"

    @property
    def name(self) -> str:
        """Of the lane in a target that several lanes share."""
        role = ".fallback" if self.fallback else ""
        return f"{self.lane.vertex}{role}.{self.lane.key}"

    @property
    def stream_name(self) -> StreamName:
        from millstream.udf.protocol import StreamName

        return StreamName(self.pipeline, self.lane.vertex, self.lane.key, self.replica)

    def as_fallback(self, *, envelope: bool = False, client: UdfClient | None = None) -> SinkOwner:
        return replace(self, fallback=True, whole=False, envelope=envelope, client=client)


class SinkConnector(SinkKind[S]):
    """A kind of sink that can be opened."""

    @abstractmethod
    def open(self, settings: S, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        """The lane's target, open from entering to leaving. Opening fences owners with a lower epoch, where the target
        can.

        Raises `UserError` for what the user has to change, `RetryLaterError` for a target that is away, which is tried
        again until it is there (a lane may also wait with that for its first records), `FencedError` where the target
        knows a higher epoch, and `DamageError` where it is ahead of `owner.start` by what the lane's buffer does not
        hold.
        """

    def envelope_form(self, settings: S) -> EnvelopeForm:
        """How it gets envelopes."""
        return EnvelopeForm.VALUE
