"""What a kind of source is to its author: one object with everything that Millstream has to know about it.

Above it: the pipeline file's models, which find it by its name, and `sources.opening`, which opens it. Below it: the
kinds of source, each in a folder of its own. Every program that reads a pipeline imports it, so the libraries of a
source are imported in its `open`.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from millstream.extract import Extraction
from millstream.keys import KeyMapping, text_of_key
from millstream.record import LaneId
from millstream.spec.connectors import SourceKind
from millstream.spec.values import SpecModel

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.udf.protocol import StreamName, UdfClient
    from millstream_reader.ids import SeenIds
    from millstream_reader.source import SourceLane

S = TypeVar("S", bound=SpecModel)

SourceOpening: TypeAlias = AbstractAsyncContextManager["SourceLane"]
"""A lane that is open from entering to leaving."""


@dataclass(frozen=True, slots=True)
class SourceOwner:
    """The owner of one lane, which opens a source."""

    lane: LaneId
    partitions: int
    """Lanes that share the source; this one is `lane.partition`."""
    position: bytes
    """The position to continue from, as a batch of this lane had it; empty at the first start."""
    base_dir: Path
    """The directory that relative paths in the spec are relative to."""
    clock: Clock
    extraction: Extraction
    """How to extract the event time and keys of each record."""
    client: UdfClient | None = None
    """The running program of a source whose settings are a `Program`."""
    stream_name: StreamName | None = None
    """Names the lane to that program."""
    seen: SeenIds | None = None
    """The ids that the lane remembers, where the source gives ids."""
    key_mapping: KeyMapping = text_of_key
    """What a key of other bytes becomes, for a source with `keys_are_bytes`."""

    @property
    def where(self) -> str:
        """The name for messages."""
        return f"lane {self.lane}"


class SourceConnector(SourceKind[S]):
    """A kind of source that can be opened."""

    extracts = False
    """Whether its lanes apply `owner.extraction` themselves; otherwise it is applied to each batch they return."""

    @abstractmethod
    def open(self, settings: S, owner: SourceOwner) -> SourceOpening:
        """The lane at `owner.position`, open from entering to leaving.

        Raises `RetryLaterError` if the system is away, in which case the opening is repeated until it is there, what
        `SourceLane.read` raises, for problems that show immediately, and `DamageError` for a position that it did not
        write.
        """


class EndlessSource(SourceConnector[S]):
    """A kind of source that never ends by itself."""

    def bounded(self, settings: S) -> bool | None:
        return False
