"""Marks of a new owner, and the errors of the previous one. Pure; the same in every implementation of the ledger."""

from __future__ import annotations

from millstream import codes
from millstream.clock import START_OF_TIME_US
from millstream.errors import REPAIR, DamageError, FencedError
from millstream.ledger.protocol import Commit, StoredMark
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2


def taken_over(stored: StoredMark | None, owner: str, commit_id: bytes) -> mark_pb2.Mark:
    """The same position under the next epoch. A lane without a mark gets its first one, which promises nothing yet."""
    mark = mark_pb2.Mark(watermark_us=START_OF_TIME_US)
    if stored is not None:
        mark.CopyFrom(stored.mark)
    mark.epoch += 1
    mark.owner = owner
    mark.commit_id = commit_id
    return mark


def takeover(lane: LaneId, mark: mark_pb2.Mark, stored: StoredMark | None) -> Commit:
    """The commit of a new owner's first mark, after the mark that it has read."""
    if stored is None:
        return Commit(lane, (), mark, after=0)
    return Commit(lane, (), mark, after=stored.sequence, replaces=stored.mark.commit_id)


def fenced(lane: LaneId, newest: int, own: int, by: str = "") -> FencedError:
    """The error for an owner with epoch `own` that was replaced by an owner with epoch `newest`."""
    name = f" by {by!r}" if by else ""
    return FencedError(
        codes.LANE_TAKEN_OVER, f"lane {lane} was taken over{name} (epoch {newest}); this owner (epoch {own}) must stop"
    )


def lost_mark(lane: LaneId, after: int, stored: StoredMark | None) -> DamageError:
    """The error for an owner whose mark was at stream sequence `after`, while the ledger now holds `stored`."""
    found = "is gone" if stored is None else f"is back at {stored.sequence}"
    if stored is not None and stored.sequence == after:
        found = "was replaced by another one there"
    return DamageError(
        codes.LEDGER_CUT,
        f"the mark of lane {lane}, which was at sequence {after}, {found}: the ledger of vertex {lane.vertex} lost "
        f"its latest data, was rolled back or was rebuilt. {REPAIR}",
    )


def settled(commit: Commit, stored: StoredMark | None) -> int | None:
    """What became of a commit, by the mark that its lane has now: the sequence of the commit's own mark; None if the
    commit is not stored and may be. Raises `FencedError`, or `DamageError` for an older mark.

    1. It is the mark that the commit follows: nothing was stored, and the same commit may be sent again.
    2. It is the mark of the commit: an earlier attempt was stored.
    3. It is another one.
    """
    if (stored.sequence if stored is not None else 0) == commit.after and not _is_replaced(commit, stored):
        return None
    if stored is not None and stored.mark.commit_id == commit.mark.commit_id:
        return stored.sequence
    raise superseded(commit, stored)


def superseded(commit: Commit, stored: StoredMark | None) -> FencedError | DamageError:
    """The error for a commit whose lane has another mark than the one that the commit follows."""
    if stored is None or stored.sequence <= commit.after:
        return lost_mark(commit.lane, commit.after, stored)
    return fenced(commit.lane, stored.mark.epoch, commit.mark.epoch, stored.mark.owner)


def _is_replaced(commit: Commit, stored: StoredMark | None) -> bool:
    """Whether the mark at the sequence that a commit expects is not the mark that the commit follows."""
    return stored is not None and bool(commit.replaces) and stored.mark.commit_id != commit.replaces
