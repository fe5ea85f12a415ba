"""What a pipeline has stored: its ledgers and marks, and messages one by one, read as they lie there and removed.

Above it: the repair. Below it: the broker's stream API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millstream.buffers.jetstream.connection import ApiError, BrokerConnection
from millstream.buffers.jetstream.ot_store import bucket_name
from millstream.buffers.jetstream.requests import NO_MESSAGE, NO_STREAM, message_data, message_headers, until_answered
from millstream.durable import step
from millstream.ledger.batch import holds_mark
from millstream.ledger.protocol import Broker, Ledger, StoredMark
from millstream.ledger.subjects import lane_filter_of, stream_name
from millstream.naming import Naming
from millstream.record import LaneId
from millstream.spec.graph import Graph
from millstream.watermark.store import OtUpdate, decode_update
from millstream.wire.ledger.v1 import mark_pb2


class Stored:
    """Of one pipeline, which does not run."""

    def __init__(self, graph: Graph, connection: BrokerConnection, broker: Broker) -> None:
        self.graph = graph
        self.naming = Naming(values=graph.pipeline.spec.logging.values)
        self.unknown: set[LaneId] = set()
        """Lanes whose marks cannot be read, and were left so."""
        self._connection = connection
        self._broker = broker
        self._pipeline = graph.pipeline.name

    def known(self, lanes: Iterable[LaneId]) -> list[LaneId]:
        """Those of which the mark can be read."""
        return [lane for lane in lanes if lane not in self.unknown]

    def stream(self, vertex: str) -> str:
        """Name of the stream that holds the ledger of a vertex."""
        return stream_name(self._pipeline, vertex)

    async def ledger(self, vertex: str) -> Ledger | None:
        """The ledger of a vertex; None when there is none."""
        return await self._broker.existing_ledger(vertex)

    async def mark(self, ledger: Ledger | None, lane: LaneId) -> StoredMark | None:
        """The mark of a lane; None when it has none."""
        return await ledger.mark(lane) if ledger is not None else None

    async def ledger_and_mark(self, lane: LaneId) -> tuple[Ledger | None, mark_pb2.Mark]:
        """Both; an empty mark where there is none."""
        ledger = await self.ledger(lane.vertex)
        stored = await self.mark(ledger, lane)
        return ledger, stored.mark if stored is not None else mark_pb2.Mark()

    async def get(self, stream: str, request: Mapping[str, object]) -> dict[str, Any] | None:
        """One message; None when there is none, or no such stream."""
        try:
            message: dict[str, Any] = (await until_answered(self._connection, f"STREAM.MSG.GET.{stream}", request))[
                "message"
            ]
        except ApiError as error:
            if error.code in (NO_MESSAGE, NO_STREAM):
                return None
            raise
        return message

    async def state(self, stream: str) -> dict[str, Any] | None:
        """What the server says of a stream; None when it has none of that name."""
        try:
            answer = await until_answered(self._connection, f"STREAM.INFO.{stream}")
        except ApiError as error:
            if error.code == NO_STREAM:
                return None
            raise
        state: dict[str, Any] = answer["state"]
        return state

    async def remove(self, stream: str, sequences: Sequence[int]) -> None:
        """Remove messages, in this order. Those that are gone are left out."""
        for sequence in sequences:
            with step("repair.remove"):
                try:
                    await until_answered(
                        self._connection, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True}
                    )
                except ApiError:
                    if await self.get(stream, {"seq": sequence}) is not None:
                        raise

    async def is_mark(self, stream: str, sequence: int) -> bool:
        """Whether the message holds the present mark of a lane."""
        message = await self.get(stream, {"seq": sequence})
        if message is None or not holds_mark(message["subject"], message_headers(message)):
            return False
        last = await self.get(stream, {"last_by_subj": lane_filter_of(message["subject"])})
        return last is not None and last["seq"] == sequence

    async def published(self, lane: LaneId) -> OtUpdate | None:
        """What the lane has published last. Raises `DamageError` when it cannot be read."""
        bucket = bucket_name(self._pipeline, lane.vertex)
        message = await self.get(f"KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.{lane.key}"})
        return decode_update(bucket, lane.key, message_data(message)) if message is not None else None

    async def forget(self, lane: LaneId) -> None:
        """Remove what the lane has published."""
        bucket = bucket_name(self._pipeline, lane.vertex)
        with step("repair.forget"):
            try:
                await until_answered(
                    self._connection, f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.{lane.key}"}
                )
            except ApiError as error:
                if error.code != NO_STREAM:
                    raise
