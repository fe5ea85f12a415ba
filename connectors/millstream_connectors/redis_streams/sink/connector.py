"""The `redisStreams` sink, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.redis_streams.settings import RedisSink
from millstream_connectors.shared.looking import unfit
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Redis(SinkConnector[RedisSink]):
    whole = True
    keeps_position_in = "target"
    encoded = True
    model = RedisSink
    meaning = "To a Redis stream, hashes or keys."
    packages: ClassVar = {"redis": "millstream[redis]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: one script writes the records and the position after them, under the owner's epoch",
    )

    def unencoded(self, settings: RedisSink) -> str | None:
        if settings.mode == "hash" or settings.format == "fields":
            return "`mode: stream` with `format: record`, or `mode: set`"
        return None

    def online_findings(self, settings: RedisSink, place: Place) -> OnlineFindings:
        from millstream_connectors.redis_streams.sink.lane import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: RedisSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.redis_streams.sink.lane import open_redis_sink

        return open_redis_sink(settings, owner)


REDIS_STREAMS = _Redis()
