"""The stage of a repair that checks what functions remember: the changelogs of lanes.

    changelog ─► can be read? ─no─► store on disk, and what can be read after it ─► written anew
                                                     └─► slots in doubt, if there are any, are named

Above it: the repair. Below it: what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from millstream.clock import SystemClock
from millstream.importing import importing
from millstream.ledger.protocol import Ledger, Witness
from millstream.plurals import counted
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.moving_states import bounds_of, disk_image, is_on_disk
from millstream_runner.local.repair.finding import Finding, LostStretch
from millstream_runner.local.stored import StoredPipeline
from millstream_vertex.keyed.changelog import has_frame
from millstream_vertex.keyed.image import LAST_SLOT, SLOTS, StateImage
from millstream_vertex.keyed.keys import parts_of
from millstream_vertex.keyed.salvage import Salvage, salvage, slots_text, write_anew
from millstream_vertex.keyed.state import KeyedState

_OWNER = "repair"
_KEYS_MAX = 1000
"""The most keys in doubt that are named."""


class _Lane(NamedTuple):
    """A lane with a state, in its ledger."""

    lane: LaneId
    ledger: Ledger
    mark: mark_pb2.Mark


class StageStates:
    """The stage for one pipeline."""

    def __init__(self, stored: StoredPipeline, states: Path) -> None:
        """`states`: where stores on disk are."""
        self._stored = stored
        self._states = states

    async def findings(self) -> AsyncIterator[Finding]:
        plan = self._stored.plan
        for vertex in plan.order:
            step = plan.vertex(vertex)
            if not step.definition.remembers(step.settings):
                continue
            for lane in self._stored.known(plan.lanes_of(vertex)):
                ledger, mark = await self._stored.ledger_and_mark(lane)
                if ledger is not None and vertex in mark.states:
                    finding = await self._finding(_Lane(lane, ledger, mark))
                    if finding is not None:
                        yield finding

    async def _finding(self, of: _Lane) -> Finding | None:
        if not (await salvage(of.ledger, of.lane, of.mark, self._state(of))).is_damaged:
            return None
        found, state, of_store = await self._read(of)
        fully = await salvage(of.ledger, of.lane, of.mark, self._state(of)) if of_store else found
        what = (
            f"the changelog of the state of lane {of.lane} is damaged: of its {counted(fully.written, 'frame')}, "
            f"{'; '.join(fully.lost)} cannot be read"
        )
        accept = partial(self._accept, of)
        if not found.is_damaged:
            affects = f"nothing is lost: the store of lane {of.lane} on disk has what these frames had"
            return Finding("state", what, affects, accept, records=0)
        if of_store:
            what += f". The store of the lane has those up to frame {of_store}"
        what += f". In doubt are {slots_text(found.in_doubt)}"
        return Finding("state", what, self._affects(of, found), accept, self._keys(state, found))

    def _affects(self, of: _Lane, found: Salvage) -> str:
        return (
            f"what lane {of.lane} remembers for keys in {slots_text(found.in_doubt)} of {SLOTS:,}: entries may be "
            "older than they were, or missing, and deleted ones may be back; timers may be gone, or fire again. The "
            "lane does not repeat its records, so its outputs and its state may no longer agree for these keys. Other "
            "keys have what was committed"
        )

    def _keys(self, state: KeyedState, found: Salvage) -> Sequence[LostStretch]:
        """The keys that are in doubt, as far as they are known."""
        doubt = set(found.in_doubt)
        keys = dict.fromkeys(key for key, *_ in state.all() if crc32(key) & LAST_SLOT in doubt)
        named = [
            "key " + ", ".join(part.decode(errors="backslashreplace") for part in parts_of(key))
            for key in list(keys)[:_KEYS_MAX]
        ]
        more = f", of which {_KEYS_MAX:,} are named" if len(keys) > _KEYS_MAX else ""
        what = f"{counted(len(keys), 'key')} in doubt that can be read{more}; how many others there were is not known"
        return [LostStretch(what, records=named)]

    def _state(self, of: _Lane, image: StateImage | None = None) -> KeyedState:
        """The state of a lane without entries, or with those of an image."""
        bounds = bounds_of(self._stored.plan, of.lane.vertex)
        state = KeyedState(str(of.lane), size_max=bounds.size_max, key_size_max=bounds.key_size_max, image=image)
        state.watermark_us = of.mark.watermark_us
        state.stored_states(of.mark.states[of.lane.vertex])
        return state

    async def _read(self, of: _Lane) -> tuple[Salvage, KeyedState, int]:
        """What can be read of a lane, and the number of the frame up to which a store has everything; 0 if there is
        none."""
        image = StateImage()
        state = self._state(of, image)
        after = await self._copied_store(of, image)
        found = await salvage(of.ledger, of.lane, of.mark, state, after=after)
        return found, state, 0 if after is None else after.number

    async def _copied_store(self, of: _Lane, into: StateImage) -> Witness | None:
        """Copy the entries of the lane's store on disk. Returns the last frame that is in them, which the ledger has,
        too; None if there is no such store. The store stays as it is."""
        place = self._states / of.lane.vertex / str(of.lane.partition)
        if not is_on_disk(self._stored.plan, of.lane.vertex) or not place.exists():
            return None
        opening = await importing(disk_image, self._states, of.ledger.ledger_id, of.lane)
        async with opening as image:
            if image.kept is None or not await has_frame(of.ledger, of.lane, image.kept[0].frame):
                return None
            for slot in range(SLOTS):
                for key, number, item, stored in image.of_slot(slot):
                    into.put(number, key, item, stored)
            return image.kept[0].frame

    async def _accept(self, of: _Lane) -> str:
        found, state, of_store = await self._read(of)
        compression = self._stored.plan.pipeline.spec.compression
        size = await write_anew(of.ledger, of.lane, state, _OWNER, compression=compression, clock=SystemClock())
        if not found.is_damaged:
            where = f"what its store has, up to frame {of_store}, and what follows"
            return f"lane {of.lane} continues with {where}: {counted(size, 'byte')} are written anew"
        return (
            f"lane {of.lane} continues with what could be read: {counted(size, 'byte')} are written anew; in doubt "
            f"are {slots_text(found.in_doubt)}"
        )
