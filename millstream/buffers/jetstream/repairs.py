"""The operations of a repair on streams, message by message.

Above it: the repair. Below it: the broker's stream API.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from millstream.buffers.jetstream.references import whole
from millstream.buffers.jetstream.requests import (
    NO_MESSAGE,
    NO_STREAM,
    message_data,
    message_headers,
    unless_missing,
    until_answered,
)
from millstream.buffers.jetstream.stream_config import sharing_of
from millstream.buffers.jetstream.torn import torn_batch
from millstream.buffers.technology import LostMessages, TornCommit
from millstream.durable import step
from millstream.ledger.batch import holds_mark, stored_mark
from millstream.ledger.protocol import StoredFrame
from millstream.ledger.subjects import buffer_of, lane_filter, lane_filter_of, stream_name
from millstream.ledger.witness import witness_of
from millstream.nats.connection import ApiError, BrokerConnection
from millstream.record import BufferId, LaneId


class JetStreamRepairs:
    """`Repairs` over streams."""

    def __init__(self, connection: BrokerConnection, pipeline: str) -> None:
        self._connection = connection
        self._pipeline = pipeline

    async def last_sequence(self, vertex: str) -> int:
        state = await self._state(vertex)
        return int(state["last_seq"]) if state is not None else 0

    async def lost(self, vertex: str) -> LostMessages | None:
        state = await self._state(vertex)
        lost = state.get("lost") if state is not None else None
        if not lost:
            return None
        return LostMessages(stream_name(self._pipeline, vertex), lost.get("msgs") or [], lost.get("bytes", 0))

    async def torn(self, lane: LaneId) -> TornCommit | None:
        stream = stream_name(self._pipeline, lane.vertex)
        message = await self._get(stream, {"last_by_subj": lane_filter(stream, lane)})
        if message is None:
            return None
        try:
            if stored_mark(message["subject"], message_data(message), message_headers(message)) is not None:
                return None
            why = "the batch was not completed"
        except ValueError as error:
            why = f"its mark cannot be read ({error})"
        batch = torn_batch(message)
        info = await until_answered(self._connection, f"STREAM.INFO.{stream}")
        sharing = sharing_of(info["config"]["metadata"])
        frames = []
        for sequence in range(batch.first, batch.last + 1):
            one = await self._get(stream, {"seq": sequence})
            data = await whole(one, partial(self._get, stream)) if one is not None and ".d." in one["subject"] else None
            if one is not None and data is not None:
                frame = StoredFrame(sequence, data, witness_of(sequence, message_headers(one)))
                frames += [(buffer, frame) for buffer in sharing.readers(buffer_of(one["subject"]))]
        return TornCommit(stream, batch.first, batch.last, why, frames)

    async def cut(self, vertex: str, torn: TornCommit) -> None:
        # From the end, so that the rest still looks torn until the first message is removed.
        for sequence in range(torn.last, torn.first - 1, -1):
            await self._remove(torn.ledger, sequence)

    async def holds_mark(self, vertex: str, sequence: int) -> bool:
        stream = stream_name(self._pipeline, vertex)
        message = await self._get(stream, {"seq": sequence})
        if message is None or not holds_mark(message["subject"], message_headers(message)):
            return False
        last = await self._get(stream, {"last_by_subj": lane_filter_of(message["subject"])})
        return last is not None and last["seq"] == sequence

    async def remove(self, vertex: str, buffer: BufferId, sequence: int) -> None:
        await self._remove(stream_name(self._pipeline, vertex), sequence)

    async def _remove(self, stream: str, sequence: int) -> None:
        """Remove a message, if it still exists."""
        with step("repair.remove"):
            try:
                await until_answered(
                    self._connection, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True}
                )
            except ApiError:
                if await self._get(stream, {"seq": sequence}) is not None:
                    raise

    async def _get(self, stream: str, request: Mapping[str, object]) -> dict[str, Any] | None:
        """One message; None if the message or the stream does not exist."""
        answer = await unless_missing(
            until_answered(self._connection, f"STREAM.MSG.GET.{stream}", request), NO_MESSAGE, NO_STREAM
        )
        return None if answer is None else answer["message"]

    async def _state(self, vertex: str) -> dict[str, Any] | None:
        """The state of a stream as the server reports it; None if there is no such stream."""
        stream = stream_name(self._pipeline, vertex)
        answer = await unless_missing(until_answered(self._connection, f"STREAM.INFO.{stream}"), NO_STREAM)
        return None if answer is None else answer["state"]
