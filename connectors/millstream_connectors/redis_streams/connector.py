"""The `redisStreams` source and sink, as pipeline files name them."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.spec.connectors import Connector, Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.redis_streams.settings import RedisSink, RedisSource
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Redis(Connector[Any]):
    """What the source and the sink have in common."""

    packages: ClassVar = {"redis": "millstream[redis]"}
    encoded = True


class _Source(_Redis, SourceConnector[RedisSource]):
    model = RedisSource
    meaning = "Entries of Redis streams."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the entry in its last commit")
    ends = "never, without `stopAtEnd`"
    untrusted = True
    keys_are_bytes = True

    def unencoded(self, settings: RedisSource) -> str | None:
        return None if settings.format == "record" else "`format: record` of `redisStreams`"

    def bounded(self, settings: RedisSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: RedisSource, place: Place) -> OnlineFindings:
        from millstream_connectors.redis_streams.source.lane import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: RedisSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.redis_streams.source.lane import open_redis_source

        return open_redis_source(settings, owner)


class _Sink(_Redis, SinkConnector[RedisSink]):
    whole = True
    keeps_position_in = "target"
    model = RedisSink
    meaning = "To a Redis stream, hashes or keys."
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


SOURCE = _Source()
SINK = _Sink()
