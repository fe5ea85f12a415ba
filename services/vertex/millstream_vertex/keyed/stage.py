"""The stage of a function that remembers: a call gets what is remembered for the keys of its records.

    records ─► keys ─► entries ─► call ─► refused? ──no──► changes to the image, steps to the changelog
                                             └─yes─► nothing of the answer counts; halves, until the record is alone

Records of a table go into the table. Before its next call, the function gets what has changed of it.

Above it: `stages`. Below it: the stage of functions, the state of the lane, and its changelog.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from millstream.account import Account
from millstream.clock import END_OF_TIME_US, Clock
from millstream.frame import Frame, build_frame
from millstream.ledger.protocol import StoredFrame
from millstream.limits import GRPC_MESSAGE_BYTES_MAX, RECORD_BYTES_MAX, STATE_KEY_BYTES_MAX
from millstream.record import BufferId
from millstream.retry import RetryPolicy
from millstream.udf.answers import MapAnswer, Result
from millstream.udf.states import StateClock
from millstream.udf.streams import KeyedMapStream
from millstream_udf.timer_entries import pack_due
from millstream_vertex.keyed.changelog import Changelog
from millstream_vertex.keyed.inbox import Inbox
from millstream_vertex.keyed.keys import distinct_keys, parts_of
from millstream_vertex.keyed.room import wait_for_room
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.table_calls import calls_with_tables
from millstream_vertex.keyed.tables import Tables
from millstream_vertex.keyed.timers import Timer
from millstream_vertex.mapping import MapStage, is_too_large
from millstream_vertex.stage import DueTimers, StageInput, StageResult
from millstream_writer.committer import Unit

CALL_STATE_BYTES_MAX = GRPC_MESSAGE_BYTES_MAX // 4
"""Bytes of what is remembered for the keys of a call with several records. It is in the message with the call, and what
has changed of it is in the answer, both beside values of records."""
assert CALL_STATE_BYTES_MAX >= 2 * STATE_KEY_BYTES_MAX

_log = logging.getLogger(__name__)
AGAIN_REPORTED = 1_000
"""How often a timer fires for a time that had come when it was set, between two records, before that is reported."""
AGAIN_KNOWN_MAX = 10_000
"""Timers that are looked at for it."""

_NO_KEYS = (
    "the record has no keys, so its partition says nothing about what is remembered for it: give records keys before "
    "they reach this vertex, or set `partitions: 1` or `state.scope: lane`"
)


class KeyedStage(MapStage):
    """The stage of a function with states, for one lane."""

    is_stateful = True

    def __init__(
        self,
        stream: KeyedMapStream,
        policy: RetryPolicy,
        *,
        state: KeyedState,
        changelog: Changelog,
        inbox: Inbox,
        clock: Clock,
        by_key: bool,
        needs_keys: bool,
        tables: Tables | None = None,
        **options: Any,
    ) -> None:
        """`by_key`: each key has a state of its own; otherwise the lane has one. `needs_keys`: whether a record without
        keys is a failure. `tables`: of the lane, open, if it has some. `options`: see `MapStage`."""
        super().__init__(stream, policy, **options)
        self._keyed_stream = stream
        self._tables = tables if tables is not None else Tables(self._where, state)
        self._keyed_call = calls_with_tables(stream, self._tables, self._where)
        self._keyed = state
        self._changelog = changelog
        self._inbox = inbox
        self._clock = clock
        self._by_key = by_key
        self._needs_keys = needs_keys
        self._firing: dict[bytes, Timer] = {}
        """The timers that the function has, by key."""
        self._again: Counter[tuple[bytes, bytes]] = Counter()
        """How often timers have fired for a time that had come when they were set, since the last record, by key and
        name."""
        self._reads = 0
        """Reads of lazy states for the result that is being made."""

    async def on_frame(self, given: StageInput) -> StageResult:
        await wait_for_room(self._keyed, self._where)
        self._again.clear()
        self._reached(given.watermark_us)
        # Also here: between two watermarks, more may expire than one sweep removes.
        self._keyed.sweep(StateClock.EVENT_TIME, self._keyed.watermark_us)
        self._tables.forget()
        if given.edge in self._tables.edges:
            self._tables.apply(given.edge, given.frame.with_values())
            records = given.frame.records
            return self._with_changes(StageResult(Account(inputs=records, processed=records)))
        return self._with_changes(await super().on_frame(given))

    async def _call(self, frame: Frame, given: StageInput, **options: Any) -> MapAnswer:
        keys, record_keys = self._keys(frame)
        if self._needs_keys and b"" in keys:
            return MapAnswer(error=_NO_KEYS, is_final=True)
        firing = self._firing
        timers = [firing[key] for key in keys] if firing else ()
        now_us = self._clock.now_us()
        entries = self._keyed.entries(keys, record_keys, now_us, timers)
        if firing:
            options["timers"] = True
        if (reader := self._keyed.reader(keys, now_us, timers)) is not None:
            options["reader"] = reader
        if frame.records > 1 and entries.size > CALL_STATE_BYTES_MAX:
            # Halves of the records have fewer keys.
            return MapAnswer(error=f"the keys of the call have a state of {entries.size:,} bytes", is_final=True)
        answer = await self._keyed_call(
            frame,
            entries,
            watermark_us=given.watermark_us,
            traceparent=given.traceparent,
            edge=given.edge,
            meanwhile=self._keyed.compact,
            **options,
        )
        if reader is not None:
            self._reads += reader.count
        if answer.error:
            return answer
        refused = self._refusal(frame, answer, record_keys) or self._keyed.apply(keys, answer.changes)
        # Nothing of a refused answer counts, because it does not say which record has changed what.
        return MapAnswer(error=refused, is_final=True) if refused else answer

    def _keys(self, frame: Frame) -> tuple[list[bytes], Sequence[int]]:
        """The keys of the records, each once, and which of them each record has."""
        if not self._by_key:
            return [b""], [0] * frame.records
        return distinct_keys(frame.keys_column, frame.records)

    def _refusal(self, frame: Frame, answer: MapAnswer, record_keys: Sequence[int]) -> str | None:
        """Why an answer cannot be used, if it cannot."""
        held_up = {record_keys[one.index] for one in answer.outcomes if one.result is Result.HELD_UP}
        if held_up:
            # In a batch, also by one that is given up: the records of a key have changed its states together.
            others = {record_keys[one.index] for one in answer.outcomes if one.result is not Result.HELD_UP}
            if held_up - others:
                return "the function holds records up although every other record of their keys succeeded"
        if answer.size > RECORD_BYTES_MAX:
            output = self._output(frame, answer, self._parents(answer))
            if output is not None and is_too_large(output):
                return f"the function returned a record of more than {RECORD_BYTES_MAX:,} bytes"
        return None

    def _with_changes(self, result: StageResult) -> StageResult:
        result.state_reads, self._reads = self._reads, 0
        result.kept = self._changelog.frames(self._keyed.take_steps(), self._clock.now_us())
        return result

    def _reached(self, watermark_us: int) -> None:
        self._keyed.watermark_us = max(self._keyed.watermark_us, watermark_us)

    def take_timers(self, clock: StateClock, until_us: int, floor_us: int, most: int) -> DueTimers | None:
        if clock is StateClock.EVENT_TIME:
            self._reached(until_us)
        due = self._keyed.take_due(clock, until_us, most)
        if not due:
            return None
        self._firing = {timer.key: timer for timer in due}
        frame = build_frame(
            [pack_due(timer.name.decode(), timer.clock, timer.at_us) for timer in due],
            # What one was set for may be older than what was promised.
            array("q", [max(timer.output_us, floor_us) for timer in due]),
            ingest_time_us=self._clock.now_us(),
            keys=[parts_of(timer.key) for timer in due],
        )
        return DueTimers(frame, [timer.id for timer in due])

    def _report_again(self, given: StageInput) -> None:
        """Say that a timer keeps records waiting by setting itself again and again."""
        for index, timer in enumerate(self._firing.values()):
            if timer.number:
                self._again[timer.key, timer.name] += 1
                if self._again[timer.key, timer.name] == AGAIN_REPORTED:
                    _log.warning(
                        "%s: no record is processed, because timers fire for times that had come when they were set, "
                        "such as %s for the %dth time: let a timer that sets itself do so for a later time",
                        *(self._where, self._naming.of(given.frame, index, given.origin), AGAIN_REPORTED),
                    )
        if len(self._again) > AGAIN_KNOWN_MAX:
            self._again.clear()

    async def on_timers(self, given: StageInput) -> StageResult:
        self._report_again(given)
        await wait_for_room(self._keyed, self._where)
        try:
            result = await super().on_frame(given)
        finally:
            self._firing = {}
        account = result.account
        account.timers, account.inputs = account.inputs, 0
        return self._with_changes(result)

    async def on_watermark(self, watermark_us: int) -> StageResult | None:
        await wait_for_room(self._keyed, self._where)
        self._reached(watermark_us)
        if not self._keyed.sweep(StateClock.EVENT_TIME, watermark_us):
            return None
        return self._with_changes(StageResult())

    async def on_timer(self, now_us: int) -> StageResult | None:
        await wait_for_room(self._keyed, self._where)
        if not self._keyed.sweep(StateClock.PROCESSING_TIME, now_us):
            return None
        return self._with_changes(StageResult())

    def taken_of(self, edge: str) -> int:
        return self._tables.records_of(edge)

    def edits(self) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        return self._inbox.edits(self._keyed)

    async def on_edit(self, edit: StoredFrame) -> StageResult:
        await wait_for_room(self._keyed, self._where)
        made = self._inbox.make(
            self._keyed, edit, self._changelog.epoch, self._clock.now_us(), self._keyed_stream.states
        )
        result = self._with_changes(StageResult())
        result.kept = [*result.kept, *made]
        return result

    @property
    def timer_us(self) -> int | None:
        times_us = self._keyed.next_expiry_us, self._keyed.next_timer_us(StateClock.PROCESSING_TIME)
        return min((time_us for time_us in times_us if time_us is not None), default=None)

    @property
    def holds_us(self) -> int:
        timer_us = self._keyed.timers_hold_us
        return END_OF_TIME_US if timer_us is None else timer_us

    @property
    def state(self) -> bytes:
        return self._keyed.encoded_states

    def restore(self, state: bytes) -> None:
        """The state was loaded when the stage was opened, and `undo` needs no other one."""

    def begin(self) -> None:
        self._keyed.begin()
        self._tables.begin()
        self._changelog.begin()

    def undo(self) -> None:
        self._firing = {}
        self._keyed.undo()
        self._tables.undo()
        self._changelog.undo()

    def committed(self, units: Sequence[Unit], sequences: Mapping[BufferId, int]) -> None:
        if results := self._changelog.committed(units, sequences):
            self._keyed.committed(results, self._changelog.position)
        self._inbox.committed(units, sequences.get(self._inbox.results, 0))
