"""The `redisStreams` source, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.redis_streams.settings import RedisSource
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Redis(SourceConnector[RedisSource]):
    encoded = True
    model = RedisSource
    meaning = "Entries of Redis streams."
    packages: ClassVar = {"redis": "millstream[redis]"}
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


REDIS_STREAMS = _Redis()
