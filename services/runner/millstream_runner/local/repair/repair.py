"""Looks for damage in the stored data of a pipeline, and gives up what cannot be recovered.

    missing ledgers ─► what the broker reports as lost ─► torn batches ─► OT entries ─► marks that went back
                         ─► changelogs of states ─► logs of reduce lanes ─► buffers and their readers

The order matters: each stage reads what the ones before have fixed, so one call does everything. Without acceptance
nothing is changed. Every step is durable by itself and may be repeated: a repair that was killed starts again, and
finds what is left.

The stages that check ledgers and marks are here; those that check what lanes have read are in `inputs`.

Above it: the command line. Below it: what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from millstream.buffers.technology import InterStepBuffer, TornCommit
from millstream.errors import DamageError
from millstream.ledger.frames import readable
from millstream.ledger.protocol import StoredFrame
from millstream.naming import Origin
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream.record import BufferId, LaneId
from millstream_runner.local.directory import KnownLedgers
from millstream_runner.local.repair.finding import Finding, LostStretch, bare
from millstream_runner.local.repair.inputs import StageInputs
from millstream_runner.local.repair.states import StageStates
from millstream_runner.local.stored import StoredPipeline
from millstream_vertex.taking_over import check_not_older


class Repair:
    """The repair of one pipeline that is not running."""

    def __init__(self, plan: Plan, buffer: InterStepBuffer, ledgers: KnownLedgers, windows: Path, states: Path) -> None:
        """`windows`, `states`: where the logs of windows and the stores of states are."""
        self._stored = StoredPipeline(plan, buffer)
        self._ledgers = ledgers
        self._inputs = StageInputs(self._stored, windows)
        self._states = StageStates(self._stored, states)
        self._unread: set[LaneId] = set()
        """Lanes whose OT entries cannot be read."""

    async def findings(self) -> AsyncIterator[Finding]:
        """All cases of damage, in the order in which they are accepted. Accept each before asking for the next."""
        for stage in (
            self._lost_ledgers,
            self._lost_messages,
            self._torn,
            self._unreadable_entries,
            self._older,
            self._states.findings,
            self._inputs.logs,
            self._inputs.buffers,
        ):
            async for finding in stage():
                yield finding

    async def _lost_ledgers(self) -> AsyncIterator[Finding]:
        ledgers = {vertex: await self._stored.ledger(vertex) for vertex in self._stored.plan.order}
        found = {vertex: ledger.ledger_id for vertex, ledger in ledgers.items() if ledger is not None}
        try:
            self._ledgers.check(found)
        except DamageError as error:

            async def accept() -> str:
                self._ledgers.replace(found)
                return "the next run creates these ledgers again; what they contained is lost"

            yield Finding(
                "ledger", bare(error), "all records that waited in these ledgers, and the marks of their lanes", accept
            )

    async def _lost_messages(self) -> AsyncIterator[Finding]:
        plan = self._stored.plan
        for vertex in dict.fromkeys(map(plan.ledger_of, plan.order)):
            lost = await self._stored.repairs.lost(vertex)
            if lost is None:
                continue
            sequences = lost.sequences

            async def accept() -> str:
                return "the lanes and buffers that this affects are checked next"

            yield Finding(
                "messages",
                f"the broker reports that it has lost {counted(len(sequences), 'message')} of {lost.what} to damaged "
                f"files ({counted(lost.bytes, 'byte')})",
                "frames, marks, or remembered ids of records. Missing frames and marks are listed below; records "
                "whose ids were lost are accepted again if their source repeats them",
                accept,
                [LostStretch(f"sequences {', '.join(map(str, sequences))} of {lost.what}")] if sequences else (),
            )

    async def _torn(self) -> AsyncIterator[Finding]:
        for lane in self._stored.plan.all_lanes():
            before: int | None = None
            while (torn := await self._stored.repairs.torn(lane)) is not None:
                if torn.last == before:
                    # The finding was not accepted.
                    self._stored.unknown.add(lane)
                    break
                before = torn.last
                yield self._torn_finding(lane, torn)

    def _torn_finding(self, lane: LaneId, torn: TornCommit) -> Finding:
        async def accept() -> str:
            await self._stored.repairs.cut(lane.vertex, torn)
            return f"sequences {torn.first} to {torn.last} of {torn.ledger} are cut off"

        frames = [self._torn_frame(buffer, frame) for buffer, frame in torn.frames]
        return Finding(
            "torn",
            f"a commit of lane {lane} is stored in part in {torn.ledger}, sequences {torn.first} to {torn.last}: "
            f"{torn.why}",
            f"{counted(len(frames), 'uncommitted frame')}: the lane writes its frames again, and readers that have "
            "already read them get them twice",
            accept,
            frames,
        )

    def _torn_frame(self, buffer: BufferId, stored: StoredFrame) -> LostStretch:
        """The contents of a frame, for people."""
        where = f"sequence {stored.sequence}, on its way to {buffer.edge}.{buffer.partition}"
        try:
            frame = readable(stored)
        except ValueError as error:
            return LostStretch(f"{where}: {error}")
        edge = next((one for one in self._stored.plan.edges if one.name == buffer.edge), None)
        if edge is None:
            # Of a state, or of windows: it has no records.
            return LostStretch(where)
        origin = Origin(f"{edge.to}/{buffer.edge}/{buffer.partition}/{stored.sequence}/")
        records = [self._stored.naming.of(frame, index, origin) for index in range(frame.records)]
        return LostStretch(f"{where}: {counted(frame.records, 'record')}", records=records)

    async def _unreadable_entries(self) -> AsyncIterator[Finding]:
        for lane in self._stored.plan.all_lanes():
            try:
                await self._stored.published(lane)
            except DamageError as error:
                self._unread.add(lane)
                yield Finding(
                    "entry",
                    str(error).partition("; `millstream")[0],
                    f"nothing is lost: lane {lane} publishes it again. It does not show whether the lane's mark is "
                    "as recent as it was",
                    partial(self._forget, lane),
                )

    async def _older(self) -> AsyncIterator[Finding]:
        for lane in self._stored.known(self._stored.plan.all_lanes()):
            update = await self._stored.published(lane) if lane not in self._unread else None
            if update is None:
                continue
            ledger = await self._stored.ledger(lane.vertex)
            try:
                check_not_older(lane, await self._stored.mark(ledger, lane), update.entry)
            except DamageError as error:
                yield Finding(
                    "mark",
                    bare(error),
                    f"what lane {lane} did after its mark: it is done again as far as its input is still available, "
                    "so its results may appear twice; what its source or its input no longer has is lost",
                    partial(self._forget, lane),
                )

    async def _forget(self, lane: LaneId) -> str:
        await self._stored.forget(lane)
        return f"lane {lane} continues from its mark"
