"""Plain values for data and its names: records, positions, lanes, buffers. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as users know it."""

    value: bytes
    """The payload."""
    event_time_us: int
    """When the event happened: microseconds since the epoch, UTC."""
    keys: tuple[str, ...] = ()
    """Key parts; empty if the record has no key."""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    """User metadata that travels with the record."""
    id: str | None = None
    """The id that the source gave, if it gives ids."""
    tags: tuple[str, ...] = ()
    """Tags that a UDF sets for the conditions of its outgoing edges; never stored."""


class Position(NamedTuple):
    """How far a lane has come in a buffer: everything up to and including the frame at `sequence` is done, and
    `record_index` records of the next frame."""

    sequence: int
    record_index: int = 0

    @classmethod
    def within(cls, sequence: int, records: int) -> Position:
        """`records` records of the frame at `sequence` are done, and nothing after them.

        The position is counted from directly before that frame. The sequence of the previous frame depends on where the
        lane came from, so positions in one frame can only be compared if all of them are made here.
        """
        return cls(sequence - 1, records)


class LaneId(NamedTuple):
    """One input partition of a vertex: an (edge, partition), for a source vertex ("source", split), for a reduce
    vertex ("window", partition), for a map that remembers ("_all", partition)."""

    vertex: str
    input: str
    """Name of the edge, `SOURCE_INPUT`, `WINDOW_INPUT` or `ALL_INPUTS`."""
    partition: int

    @property
    def key(self) -> str:
        """Unique within the vertex: the lane's key in the OT store and the end of its mark's subject."""
        return f"{self.input}.{self.partition}"

    def __str__(self) -> str:
        return f"{self.vertex}/{self.key}"


@dataclass(frozen=True, slots=True, order=True)
class ReplicaId:
    """One replica of a vertex: the lanes with `partition mod replicas == number`."""

    vertex: str
    number: int

    @property
    def name(self) -> str:
        """Unique within the pipeline; names a replica on a worker's command line."""
        return f"{self.vertex}-{self.number}"

    def __str__(self) -> str:
        return self.name


ID_DIGEST_BYTES = 16


def id_digest(record_id: bytes) -> bytes:
    """The digest that is stored instead of a record's id. In practice, two ids never have the same digest."""
    return blake2b(record_id, digest_size=ID_DIGEST_BYTES).digest()


SOURCE_INPUT = "source"
"""`LaneId.input` of a source's lanes. No edge can have this name (edge names contain a hyphen or are checked)."""

WINDOW_INPUT = "window"
"""`LaneId.input` of a reduce's lanes, which read all of its edges. No edge can have this name either."""

ALL_INPUTS = "_all"
"""`LaneId.input` of the lanes of a map that remembers, which read all of its edges. The name of an edge cannot begin
with `_`."""


def changelog_of(vertex: str) -> str:
    """`BufferId.edge` of the changelogs of a vertex's state, which are in its own ledger. No edge can have this name,
    and no copy that edges share."""
    return f"_state-{vertex}"


def inbox_of(vertex: str) -> str:
    """`BufferId.edge` of the inboxes of a vertex's lanes, with the edits that they are asked to make, and
    `LaneId.input` of those who write there. They are in the vertex's own ledger."""
    return f"_edits-{vertex}"


def edit_results_of(vertex: str) -> str:
    """`BufferId.edge` of what became of these edits, which the vertex's lanes write."""
    return f"_edited-{vertex}"


class BufferId(NamedTuple):
    """The durable queue of one (edge, partition), in the ledger of the edge's upstream vertex."""

    edge: str
    partition: int

    @property
    def key(self) -> str:
        """Unique within the pipeline."""
        return f"{self.edge}.{self.partition}"

    def __str__(self) -> str:
        return self.key
