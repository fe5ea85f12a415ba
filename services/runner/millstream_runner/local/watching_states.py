"""Follows what functions remember: what changes of it, as it is committed.

    state of a lane ─► frames of its changelog as they pass, and marks ─► entries that are different now

A frame also has entries that are as they were, because slots are written anew. What was missed, because it was trimmed
before it was seen, is found by comparing what is stored now.

Above it: `millstream state watch`. Below it: the ledgers. It owns no lane, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import NamedTuple

from millstream.background import beside
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, StoredFrame, StoredMark
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.state_rows import StateForm
from millstream_runner.local.stored_states import LaneState, form_of, state_of
from millstream_runner.local.view import PipelineView
from millstream_vertex.keyed.changelog import changelog_buffer, frames_of
from millstream_vertex.keyed.image import Stored, Versioned, parts_of, rows_of, stored_of
from millstream_vertex.keyed.state import EntryChange
from millstream_vertex.keyed.steps import Step, decode_step

_LOOK_S = 0.2
"""Between two looks whether a lane remembers something now."""
_QUEUED_MAX = 1000
"""Changes that wait to be shown. A lane does not wait for them: what is trimmed meanwhile is compared."""


class ChangedEntry(NamedTuple):
    """What an entry is after a commit."""

    lane: LaneId
    sequence: int
    """Of the frame that says so; of the mark, if that frame was missed."""
    form: StateForm
    key: bytes
    item: bytes
    stored: Versioned | None
    """None: it is gone."""


_Entries = dict[tuple[bytes, int, bytes], Stored]
"""By key, state and item."""


async def changed_entries(view: PipelineView, plan: Plan, vertex: str) -> AsyncGenerator[ChangedEntry]:
    """What changes of the state of a vertex from now on, in the order of each lane. Without end."""
    changes: asyncio.Queue[ChangedEntry] = asyncio.Queue(maxsize=_QUEUED_MAX)
    async with asyncio.TaskGroup() as lanes:
        for lane in plan.lanes_of(vertex):
            lanes.create_task(_follow(view, lane, changes), name=f"watch the state of {lane}")
        while True:
            yield await changes.get()


async def _follow(view: PipelineView, lane: LaneId, changes: asyncio.Queue[ChangedEntry]) -> None:
    """Put the changes of a lane. What it remembers when the watch begins is no change."""
    now = await _state(view, lane)
    known = _entries_of(now)
    while True:
        if now is None:
            await asyncio.sleep(_LOOK_S)
        else:
            for change in _differences(now, known):
                await changes.put(change)
            known = _entries_of(now)
            async with aclosing(_passing(now, known, await view.existing_ledger(lane.vertex))) as passing:
                async for change in passing:
                    await changes.put(change)
        now = await _state(view, lane)


async def _state(view: PipelineView, lane: LaneId) -> LaneState | None:
    ledger = await view.existing_ledger(lane.vertex)
    return await state_of(ledger, lane) if ledger is not None else None


async def _passing(now: LaneState, known: _Entries, ledger: Ledger | None) -> AsyncGenerator[ChangedEntry]:
    """What is changed by commits after a state, until one was missed, or has a state that is new. `known`: the entries,
    which this keeps up to date."""
    assert ledger is not None, "the state was read there"
    lane, buffer, forms = now.lane, changelog_buffer(now.lane), [form_of(state) for state in now.keyed.stored]
    number, seen = frames_of(now.mark).get(buffer, 0), len(now.keyed.latest())
    async with aclosing(_commits(ledger, lane, now.sequence)) as commits:
        async for commit in commits:
            if isinstance(commit, StoredFrame):
                witness = commit.witness
                if witness is None or witness.number <= number:
                    continue
                if witness.number != number + 1:
                    return
                steps = [decode_step(value) for value in decoded(ledger.vertex, buffer, commit).values()]
                changes, number = [change for step in steps for change in _changes(step)], witness.number
                if not steps[0].is_of_slots:
                    # It begins with the changes that marks had before. A repair begins with slots, and leaves these.
                    del changes[:seen]
                    seen = 0
            elif frames_of(commit.mark).get(buffer, 0) == number:
                latest = state_pb2.KeyedState.FromString(commit.mark.states[lane.vertex]).latest
                changes = [*_changes(decode_step(latest))][seen:]
                seen += len(changes)
            else:
                # The frame comes.
                continue
            if any(change.state >= len(forms) for change in changes):
                return
            for change in changes:
                name = change.key, change.state, change.item
                if known.get(name) == change.stored:
                    continue
                if change.stored is None:
                    del known[name]
                else:
                    known[name] = change.stored
                yield _changed(lane, commit.sequence, forms[change.state], change)


async def _commits(ledger: Ledger, lane: LaneId, sequence: int) -> AsyncGenerator[StoredFrame | StoredMark]:
    """The frames of the changelog that follow a place, as they come, and the mark while none comes."""
    found: asyncio.Queue[StoredFrame] = asyncio.Queue(maxsize=1)
    async with ledger.watch(changelog_buffer(lane), sequence) as frames:

        async def follow() -> None:
            async for frame in frames:
                await found.put(frame)

        async with beside(follow(), f"watch the changelog of {lane}"):
            while True:
                try:
                    async with asyncio.timeout(_LOOK_S):
                        frame = await found.get()
                except TimeoutError:
                    if (stored := await ledger.mark(lane)) is not None:
                        yield stored
                else:
                    yield frame


def _changes(step: Step) -> Iterator[EntryChange]:
    """The entries of a step. Those of slots that are written anew are as they were: what is gone was said before."""
    for key, state, item, stored in rows_of(step.entries):
        yield EntryChange(key, state, item, stored)


def _entries_of(state: LaneState | None) -> _Entries:
    if state is None:
        return {}
    return {(key, number, item): stored_of(*stored) for key, number, item, stored in state.keyed.all()}


def _differences(now: LaneState, known: _Entries) -> Iterator[ChangedEntry]:
    """Entries that are other ones now."""
    forms, gone = [form_of(state) for state in now.keyed.stored], dict(known)
    for name, stored in _entries_of(now).items():
        if gone.pop(name, None) != stored:
            yield _changed(now.lane, now.sequence, forms[name[1]], EntryChange(*name, stored))
    for name in gone:
        yield _changed(now.lane, now.sequence, forms[name[1]], EntryChange(*name, None))


def _changed(lane: LaneId, sequence: int, form: StateForm, change: EntryChange) -> ChangedEntry:
    stored = None if change.stored is None else Versioned(*parts_of(change.stored))
    return ChangedEntry(lane, sequence, form, change.key, change.item, stored)
