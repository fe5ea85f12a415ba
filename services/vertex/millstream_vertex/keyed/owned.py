"""The state of a lane that no process runs, in the hands of whoever changes it from outside: as its rightful owner.

    take over ─► mark, changelog ─► state ─► changes ─► COMMIT: changelog + mark, same position ─► ... ─► trim

A commit is made by the same code as that of a running lane, so it is atomic and fenced, and rewrites slots as it does.
Changes are committed in order, in parts of bounded size. Whoever is killed between two of them has made the first
changes and none of the others; made again, all of them change nothing that was changed before.

Above it: imports, edits, and changes of partitions. Below it: the state of the lane, its changelog, and the committer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from millstream import codes
from millstream.background import beside
from millstream.clock import Clock
from millstream.compression import Compression
from millstream.errors import UserError
from millstream.frame import Frame
from millstream.ledger.protocol import Ledger
from millstream.limits import FRAME_BYTES_MAX
from millstream.record import BufferId, LaneId
from millstream_vertex.keyed.changelog import Changelog, changelog_buffer
from millstream_vertex.keyed.committing import commit_in_time, committer_to
from millstream_vertex.keyed.image import Image, parts_of
from millstream_vertex.keyed.inbox import Inbox
from millstream_vertex.keyed.room import wait_for_room
from millstream_vertex.keyed.state import EntryChange, KeyedState
from millstream_vertex.keyed.steps import ENTRY_BYTES
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Committer, Unit

PART_BYTES_MAX = FRAME_BYTES_MAX
"""Bytes of the changes of a commit, unless a single one has more. Slots that are written anew are as much again."""


class StateBounds(NamedTuple):
    """The bounds of the state of a lane, in bytes."""

    size_max: int
    key_size_max: int


class OwnedState:
    """The state of a lane that was taken over. Made by `open_owned_state`; for one task."""

    def __init__(
        self, lane: LaneId, keyed: KeyedState, changelog: Changelog, inbox: Inbox, committer: Committer, clock: Clock
    ) -> None:
        self.lane = lane
        self.keyed = keyed
        self.changelog = changelog
        self._inbox = inbox
        self._committer = committer
        self._clock = clock

    def check(self, changes: Collection[EntryChange]) -> None:
        """Raise `UserError` if the limits do not allow these changes, all of them together."""
        if refused := self.keyed.refusal_of(changes):
            raise UserError(codes.STATE_NOT_CHANGED, f"lane {self.lane}: {refused}. Nothing was changed")

    async def apply(self, changes: Iterable[EntryChange]) -> int:
        """Commit changes, which have been checked. Returns how many entries were different before. Raises `FencedError`
        if the lane has another owner, and `InfrastructureError` if its ledger has no room."""
        changed = size = 0
        for change in changes:
            if not self.keyed.write(change):
                continue
            changed += 1
            size += _size(change)
            if size >= PART_BYTES_MAX:
                await self._commit(changed)
                size = 0
        if size:
            await self._commit(changed)
        return changed

    @property
    def epoch(self) -> int:
        """Of this owner."""
        return self._committer.mark.epoch

    @property
    def sequence(self) -> int:
        """Of the last frame of the changelog."""
        return self._committer.sequences[self.changelog.buffer]

    async def make_edits(self) -> None:
        """Make the edits that wait in the inbox of the lane. Raises as `apply`."""
        async for stored in self._inbox.waiting(self.keyed):
            made = self._inbox.make(self.keyed, stored, self._committer.mark.epoch, self._clock.now_us())
            await self._commit(0, made)

    async def _commit(self, changed: int, results: Sequence[tuple[BufferId, Frame]] = ()) -> None:
        """`results`: of edits."""
        frames = [*self.changelog.frames(self.keyed.take_steps(), self._clock.now_us()), *results]
        unit = Unit(frames=frames, size=sum(frame.size for _, frame in frames), pieces=0)
        unit.changes.states = {self.lane.vertex: self.keyed.encoded_states}
        await commit_in_time(
            self._committer,
            self.lane,
            unit,
            f"Up to {changed:,} entries of the lane were changed before. Make room, then repeat the command: what was "
            "changed is not changed again",
        )
        if with_steps := self.changelog.committed([unit], self._committer.sequences):
            self.keyed.committed(with_steps, self.changelog.position)
        self._inbox.committed([unit], self._committer.sequences.get(self._inbox.results, 0))
        self.keyed.begin()
        self.changelog.begin()
        await wait_for_room(self.keyed, self.lane)


def _size(change: EntryChange) -> int:
    value = b"" if change.stored is None else parts_of(change.stored)[0]
    return len(change.key) + len(change.item) + len(value) + ENTRY_BYTES


@asynccontextmanager
async def open_owned_state(
    ledger: Ledger,
    lane: LaneId,
    owner: str,
    bounds: StateBounds,
    *,
    compression: Compression,
    clock: Clock,
    image: Image | None = None,
) -> AsyncIterator[OwnedState]:
    """Take over a lane, load its state, and make the edits that wait for its owner. `image`: see `KeyedState`. Raises
    `DamageError` if that cannot be read, and `UserError` if the lane has a delivery to finish first."""
    before = await ledger.mark(lane)
    if before is not None and before.mark.HasField("prepared"):
        raise UserError(
            codes.STATE_NOT_CHANGED,
            f"lane {lane} was killed during a delivery to its sink, which it has to finish first: run the pipeline, "
            "end it with Ctrl-C, and repeat this. Nothing was changed",
        )
    taken_over = await ledger.take_over(lane, owner)
    mark = taken_over.mark
    committer = await committer_to(ledger, lane, taken_over, changelog_buffer(lane), compression)
    trimmer = Trimmer(ledger.trim, sharing=ledger.sharing)
    keyed = KeyedState(str(lane), size_max=bounds.size_max, key_size_max=bounds.key_size_max, image=image)
    keyed.watermark_us = mark.watermark_us
    keyed.stored_states(mark.states.get(lane.vertex, b""))
    changelog = Changelog(lane, trimmer, lambda: committer.mark)
    await changelog.load(ledger, lane, mark, keyed)
    async with beside(trimmer.run(), f"trim the changelog of {lane}"):
        owned = OwnedState(lane, keyed, changelog, Inbox(ledger, lane, trimmer), committer, clock)
        await owned.make_edits()
        yield owned
    await trimmer.finish()
