"""The `redisStreams` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding
from millstream_connectors.redis_streams.settings import RedisSink
from millstream_connectors.shared.looking import unfit_setting
from millstream_writer.connector import SinkConnector, SinkOwner, as_fallback

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class _Redis(SinkConnector[RedisSink]):
    whole = True
    encoded = True
    model = RedisSink
    meaning = "To a Redis stream, hashes or keys."
    packages: ClassVar[Mapping[str, str]] = {"redis": "millstream[redis]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: one script writes the records and the position after them, under the owner's epoch",
    )

    def guarantee(self, settings: RedisSink, *, fallback: bool) -> Guarantee:
        if fallback:
            return as_fallback("target")
        return self.promise

    def unencoded(self, settings: RedisSink) -> str | None:
        if settings.mode == "hash" or settings.format == "fields":
            return "`mode: stream` with `format: record`, or `mode: set`"
        return None

    def online_findings(self, settings: RedisSink, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.redis_streams.sink.lane import look

        loc = "stream" if settings.mode == "stream" else "prefix"
        return unfit_setting(place, loc, look(settings, place.base_dir))

    def open(self, settings: RedisSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.redis_streams.sink.lane import open_redis_sink

        return open_redis_sink(settings, owner)


REDIS_STREAMS = _Redis()
