"""The stages of a repair that look at ledgers and marks.

Above it: the repair. Below it: what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from millstream.buffers.jetstream.requests import message_data, message_headers
from millstream.buffers.jetstream.torn import torn_batch
from millstream.errors import DamageError
from millstream.ledger.batch import stored_mark
from millstream.ledger.frames import readable
from millstream.ledger.protocol import StoredFrame
from millstream.ledger.subjects import lane_filter
from millstream.ledger.witness import witness_of
from millstream.naming import Origin
from millstream.record import LaneId
from millstream.spec.lanes import all_lanes
from millstream_runner.local.ledgers import KnownLedgers
from millstream_runner.local.repair.finding import Finding, Lost, bare
from millstream_runner.local.repair.stored import Stored
from millstream_vertex.past import check_not_older


class Marks:
    """Of one pipeline."""

    def __init__(self, stored: Stored, ledgers: KnownLedgers) -> None:
        self._stored = stored
        self._ledgers = ledgers
        self._unread: set[LaneId] = set()
        """Lanes whose OT entries cannot be read."""

    async def lost_ledgers(self) -> AsyncIterator[Finding]:
        found: dict[str, str] = {}
        for vertex in self._stored.graph.order:
            ledger = await self._stored.ledger(vertex)
            if ledger is not None:
                found[vertex] = ledger.ledger_id
        try:
            self._ledgers.check(found)
        except DamageError as error:

            async def accept() -> str:
                self._ledgers.replace(found)
                return "the next run makes these ledgers anew; what was in them is lost"

            yield Finding(
                "ledger", bare(error), "everything that waited in these ledgers, and the marks of their lanes", accept
            )

    async def lost_messages(self) -> AsyncIterator[Finding]:
        for vertex in self._stored.graph.order:
            stream = self._stored.stream(vertex)
            state = await self._stored.state(stream)
            lost = state.get("lost") if state is not None else None
            if not lost:
                continue
            sequences = lost.get("msgs") or []

            async def accept() -> str:
                return "what that takes from lanes and buffers is looked for next"

            yield Finding(
                "messages",
                f"the broker says that it has lost {len(sequences):,} messages of {stream} to damaged files "
                f"({lost.get('bytes', 0):,} bytes)",
                "frames, marks, or remembered ids of records. Frames and marks are named below, where any are missing; "
                "records whose ids were among it are taken in again when their source repeats them",
                accept,
                [Lost(f"sequences {', '.join(map(str, sequences))} of {stream}")] if sequences else (),
            )

    async def torn(self) -> AsyncIterator[Finding]:
        for lane in all_lanes(self._stored.graph):
            stream = self._stored.stream(lane.vertex)
            before: object = None
            while (message := await self._stored.get(stream, {"last_by_subj": lane_filter(stream, lane)})) is not None:
                try:
                    mark = stored_mark(message["subject"], message_data(message), message_headers(message))
                    why = "the batch was not completed"
                except ValueError as error:
                    mark, why = None, f"its mark cannot be read ({error})"
                if mark is not None:
                    break
                if message["seq"] == before:
                    # It was not accepted.
                    self._stored.unknown.add(lane)
                    break
                before = message["seq"]
                yield await self._torn_finding(lane, stream, message, why)

    async def _torn_finding(self, lane: LaneId, stream: str, message: dict[str, Any], why: str) -> Finding:
        torn = torn_batch(message)
        lost = [await self._torn_frame(lane, stream, sequence) for sequence in range(torn.first, torn.last + 1)]

        async def accept() -> str:
            # From the end: what is left of it looks torn until the first is gone.
            await self._stored.remove(stream, range(torn.last, torn.first - 1, -1))
            return f"sequences {torn.first} to {torn.last} of {stream} are cut off"

        frames = [item for item in lost if item is not None]
        return Finding(
            "torn",
            f"a commit of lane {lane} is stored in part in {stream}, sequences {torn.first} to {torn.last}: {why}",
            f"{len(frames)} frames, which were not committed: the lane makes them again, and who has read them already "
            "gets them twice",
            accept,
            frames,
        )

    async def _torn_frame(self, lane: LaneId, stream: str, sequence: int) -> Lost | None:
        """What a frame holds, for people; None for other messages."""
        message = await self._stored.get(stream, {"seq": sequence})
        if message is None or ".d." not in message["subject"]:
            return None
        edge, partition = message["subject"].split(".")[-2:]
        where = f"sequence {sequence}, on its way to {edge}.{partition}"
        try:
            frame = readable(
                StoredFrame(sequence, message_data(message), witness_of(sequence, message_headers(message)))
            )
        except ValueError as error:
            return Lost(f"{where}: {error}")
        reader = self._stored.graph.edge(edge).to
        origin = Origin(f"{reader}/{edge}/{partition}/{sequence}/")
        records = [self._stored.naming.of(frame, index, origin) for index in range(frame.records)]
        return Lost(f"{where}: {frame.records:,} records", records=records)

    async def unreadable_entries(self) -> AsyncIterator[Finding]:
        for lane in all_lanes(self._stored.graph):
            try:
                await self._stored.published(lane)
            except DamageError as error:
                self._unread.add(lane)
                yield Finding(
                    "entry",
                    str(error).partition("; `millstream")[0],
                    f"nothing that is lost: lane {lane} publishes it anew. Whether its mark is as new as it was cannot "
                    "be told from it",
                    partial(self._forget, lane),
                )

    async def older(self) -> AsyncIterator[Finding]:
        for lane in self._stored.known(all_lanes(self._stored.graph)):
            told = await self._stored.published(lane) if lane not in self._unread else None
            if told is None:
                continue
            ledger = await self._stored.ledger(lane.vertex)
            try:
                check_not_older(lane, await self._stored.mark(ledger, lane), told.entry)
            except DamageError as error:
                yield Finding(
                    "mark",
                    bare(error),
                    f"what lane {lane} did since its mark: it is done again as far as its input is still there, so "
                    "what became of it may be there twice; what its source or its input has no more is lost",
                    partial(self._forget, lane),
                )

    async def _forget(self, lane: LaneId) -> str:
        await self._stored.forget(lane)
        return f"lane {lane} goes on from its mark"
