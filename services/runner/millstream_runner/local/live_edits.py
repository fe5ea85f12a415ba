"""Changes what functions remember while their pipeline runs: the lanes that run make the changes.

    entries ─► edits of bounded size, by lane ─► into the inbox of the lane, one after the other ─► made or refused
                                                          └─► the run ends: made here, as between two runs

An edit that was handed over is made, whatever becomes of this process. Made again, it changes nothing.

Above it: `millstream state`. Below it: the inboxes of lanes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

from millstream import codes
from millstream.buffers.placed import placed
from millstream.buffers.registry import technology_of
from millstream.clock import SystemClock
from millstream.errors import FencedError, InfrastructureError, RetryLaterError, UserError
from millstream.ledger.protocol import Ledger
from millstream.record import LaneId
from millstream.udf.states import DeclaredState
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.changing_states import (
    OWNER,
    Expectation,
    MadeChange,
    StateChange,
    StatefulVertex,
    opened_ledger,
)
from millstream_runner.local.moving_states import owned_states
from millstream_runner.local.state_rows import RowEntry
from millstream_runner.local.stored_states import LaneState, StoredEntry, state_of
from millstream_runner.local.until_over import until_over
from millstream_vertex.keyed.edits import EDIT_BYTES_MAX, Edit
from millstream_vertex.keyed.image import Stored, parts_of, size_of, stored_of
from millstream_vertex.keyed.inbox import HandedOver, MadeEdit, found_edit, hand_over, until_made
from millstream_vertex.keyed.state import EntryChange

WAIT_S = 60.0
"""So long a command waits for a lane, which may be in the midst of a slow call, or restarting."""

T = TypeVar("T")
LaneEdits = Sequence[tuple[LaneId, Edit]]


def edits_to_store(
    declared: Sequence[DeclaredState],
    entries: Mapping[LaneId, Sequence[RowEntry]],
    *,
    keep_expiry: bool = False,
    expected: Sequence[EntryChange] = (),
) -> LaneEdits:
    """Edits that store these entries. `keep_expiry`: they expire when those would that they replace. `expected`: see
    `expected_now`."""
    found: list[tuple[LaneId, Edit]] = []
    for lane, some in entries.items():
        sized = ((one, size_of(one.key, one.item, one.value)) for one in some)
        for part in _parts(sized):
            names = list(dict.fromkeys(one.state.name for one in part))
            states = [_stored(state, part) for name in names for state in declared if state.name == name]
            changes = [
                EntryChange(
                    one.key,
                    names.index(one.state.name),
                    one.item,
                    stored_of(one.value, one.expires_us, one.version),
                )
                for one in part
            ]
            found.append((lane, Edit(_name(), states, changes, expected, keep_expiry)))
    return found


def _stored(state: DeclaredState, entries: Sequence[RowEntry]) -> state_pb2.StoredState:
    versions = [one.version for one in entries if one.state.name == state.name]
    return state_pb2.StoredState(
        name=state.name,
        kind=state.kind,
        codec=state.codec,
        item_codec=state.item_codec,
        clock=state.clock,
        version=max(versions),
        oldest_version=min(versions),
    )


async def expected_now(
    of: StatefulVertex, entries: Mapping[LaneId, Sequence[RowEntry]], expected: Expectation
) -> Sequence[EntryChange]:
    """What the only one of these entries is now, which it also has to be when it is changed. Raises `UserError` if it
    is not as expected."""
    ((lane, (entry,)),) = entries.items()
    (state,) = await _running_states(of, [lane])
    before: Stored | None = None
    for number, one in enumerate(state.keyed.stored if state is not None else ()):
        if state is not None and one.name == entry.state.name:
            before = state.keyed.entry(number, entry.key, entry.item)
    is_made = before is not None and parts_of(before)[0] == entry.value
    if not is_made and (why := expected.misfit(entry, before)):
        raise UserError(codes.STATE_NOT_CHANGED, f"lane {lane}: {why}. Nothing was changed")
    return [EntryChange(entry.key, 0, entry.item, before)]


async def _running_states(of: StatefulVertex, lanes: Sequence[LaneId]) -> Sequence[LaneState | None]:
    """What is committed in these lanes."""
    async with until_over(of.directory, lambda: None), running_ledger(of) as ledger:
        return [await state_of(ledger, lane) for lane in lanes]
    raise InfrastructureError(codes.EDIT_WAITS, "the run has ended meanwhile. Nothing was changed: repeat the command")


async def live_deletions(of: StatefulVertex, is_wanted: Callable[[StoredEntry], bool]) -> LaneEdits:
    """Edits that remove the entries that are wanted, of those that are committed now."""
    found: list[tuple[LaneId, Edit]] = []
    for lane, state in zip(of.lanes, await _running_states(of, of.lanes), strict=True):
        wanted = [one for one in state.entries() if is_wanted(one)] if state is not None else []
        # Their results have what they were.
        sized = ((one, size_of(one.stored_key, one.item, one.value)) for one in wanted)
        for part in _parts(sized):
            numbers = list(dict.fromkeys(one.number for one in part))
            by_number = {one.number: one.state for one in part}
            states = [_without_versions(by_number[number]) for number in numbers]
            changes = [EntryChange(one.stored_key, numbers.index(one.number), one.item, None) for one in part]
            found.append((lane, Edit(_name(), states, changes)))
    return found


def _without_versions(state: state_pb2.StoredState) -> state_pb2.StoredState:
    return state_pb2.StoredState(name=state.name, kind=state.kind, codec=state.codec, item_codec=state.item_codec)


def _name() -> str:
    return uuid4().hex


def _parts(sized: Iterable[tuple[T, int]]) -> Iterator[Sequence[T]]:
    """What fits into an edit each time; at least one."""
    part: list[T] = []
    total = 0
    for one, size in sized:
        if part and total + size > EDIT_BYTES_MAX:
            yield part
            part, total = [], 0
        part.append(one)
        total += size
    if part:
        yield part


@asynccontextmanager
async def running_ledger(of: StatefulVertex) -> AsyncIterator[Ledger]:
    """The ledger of the vertex in the broker of the run."""
    runtime = of.directory.read_runtime()
    assert runtime is not None, "it runs"
    technology = technology_of(of.plan.pipeline)
    access = of.directory.access(runtime, technology)
    async with technology.open(access, of.plan.pipeline.name, name="edit") as buffer:
        ledger = await placed(buffer, of.plan).broker.existing_ledger(of.vertex)
        if ledger is None:
            raise RetryLaterError(
                codes.BROKER_AWAY, f"vertex {of.vertex} has not stored anything yet. Repeat this in a moment"
            )
        yield ledger


class LiveEdits:
    """Edits of one vertex, and what became of them."""

    def __init__(self, of: StatefulVertex, edits: LaneEdits) -> None:
        self._of = of
        self._waiting = deque(edits)
        self._handed: HandedOver | None = None
        """The first of these, if it is in the inbox of its lane."""
        self._is_begun = False
        """Whether it may be."""
        self.done = StateChange()

    async def make(self) -> StateChange:
        """Have the lanes make them. Raises `UserError` if one is refused, or if a lane has ended."""
        async with until_over(self._of.directory, lambda: None), running_ledger(self._of) as ledger:
            await self._check_lanes(ledger)
            while self._waiting:
                async with self._in_time():
                    handed = await self._hand_over(ledger)
                    made = await until_made(ledger, handed)
                self._note(made)
        # The run has ended meanwhile, and its broker with it.
        if self._waiting:
            async with opened_ledger(self._of) as ledger:
                while self._waiting:
                    handed = await self._hand_over(ledger)
                    # The owner of a lane makes what waits in its inbox.
                    async with owned_states(
                        self._of.plan, ledger, [handed.lane], OWNER, stores=self._of.directory.states
                    ):
                        made = await until_made(ledger, handed)
                    self._note(made)
        return self.done

    async def _check_lanes(self, ledger: Ledger) -> None:
        for lane in {lane: None for lane, _ in self._waiting}:
            stored = await ledger.mark(lane)
            if stored is not None and stored.mark.ended:
                raise UserError(
                    codes.STATE_NOT_CHANGED,
                    f"lane {lane} has ended: it has read all of its input, and makes no commit any more. Repeat this "
                    "when the run is over. Nothing was changed",
                )

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        lane, _ = self._waiting[0]
        try:
            async with asyncio.timeout(WAIT_S):
                yield
        except TimeoutError:
            raise InfrastructureError(
                codes.EDIT_WAITS,
                f"lane {lane} has not made the change within {WAIT_S:g} s. {self._said(is_begun=self._is_begun)}",
            ) from None
        except FencedError as error:
            raise InfrastructureError(
                codes.EDIT_WAITS,
                f"another command changes the state of lane {lane} at the same time. {self._said(is_begun=True)}",
            ) from error

    def _said(self, *, is_begun: bool) -> str:
        before = f"{self.done.changed:,} entries were changed before. " if self.done.changed else ""
        if not is_begun:
            return f"{before}Nothing was handed over to it"
        return (
            f"{before}It makes it when it goes on, and `millstream state get` shows that. Repeated, the command leaves "
            "what is already so"
        )

    async def _hand_over(self, ledger: Ledger) -> HandedOver:
        lane, edit = self._waiting[0]
        if self._handed is None and self._is_begun:
            self._handed = await found_edit(ledger, lane, edit.id)
        self._is_begun = True
        if self._handed is None:
            compression = self._of.plan.pipeline.spec.compression
            self._handed = await hand_over(ledger, lane, edit, OWNER, compression=compression, clock=SystemClock())
        return self._handed

    def _note(self, made: MadeEdit) -> None:
        lane, edit = self._waiting.popleft()
        self._handed, self._is_begun = None, False
        result = made.result
        if result is None:
            raise InfrastructureError(
                codes.EDIT_WAITS,
                f"lane {lane} has made or refused the change, and so many others since then that its result is gone. "
                f"{self._said(is_begun=True)}",
            )
        if result.refused:
            before = (
                f"{self.done.changed:,} entries were changed before" if self.done.changed else "Nothing was changed"
            )
            raise UserError(codes.STATE_NOT_CHANGED, f"lane {lane}: {result.refused}. {before}")
        self.done.unchanged += result.unchanged
        if not result.changed:
            return
        self.done.changed += result.changed
        if str(lane) not in self.done.lanes:
            self.done.lanes.append(str(lane))
        self.done.commits.append({"lane": str(lane), "epoch": result.epoch, "sequence": made.sequence})
        wanted = {(one.key, one.state, one.item): one.stored for one in edit.entries}
        self.done.note(
            MadeChange(edit.states[one.state], one.key, one.item, one.stored, wanted[one[:3]])
            for one in result.before or ()
        )
