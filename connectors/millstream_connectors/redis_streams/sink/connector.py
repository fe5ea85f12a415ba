"""The `redisStreams` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import Strict
from millstream.spec.values import PositiveDuration, ShapeProblem, Text, field
from millstream_connectors.redis_streams.settings import RedisServer
from millstream_connectors.shared.servers import notes_by_url
from millstream_writer.connector import SinkConnector, SinkOwner, as_fallback

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class RedisSink(RedisServer):
    """Writes records to a Redis stream, or to Redis hashes or keys, each batch in one step with the lane's position."""

    noun = "a redisStreams sink"

    mode: Literal["stream", "hash", "set"] = "stream"
    """`stream` adds an entry for each record (XADD); `hash` sets the fields of the hash of the record's key (HSET);
    `set` makes the record the value of its key (SET)."""
    stream: Text | None = None
    """Key of the stream, for `mode: stream`. It is created if it does not exist."""
    prefix: Text | None = None
    """For `hash` and `set`: the part of the Redis key before the record's key, such as `order:`."""
    format: Literal["record", "fields"] | None = None
    """The fields of an entry in a stream. `record`: `value`, `key`, `eventTime` (milliseconds), and `header.NAME` for
    each header. `fields`: the members of the record, which is a JSON object. Default: `record`; a hash has `fields`."""
    max_length: Annotated[int, Strict(ge=1)] | None = None
    """Approximate number of entries that the stream keeps; older ones are removed. Default: all."""
    expire_s: PositiveDuration | None = field(default=None, alias="expire")
    """For `hash` and `set`: how long a key exists after it was last written. Duration. Default: forever."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires the fields of the mode, and rejects those without effect."""
        yield from super().relation_problems()
        wanted, other = ("stream", "prefix") if self.mode == "stream" else ("prefix", "stream")
        if getattr(self, wanted) is None:
            what = f"`mode: {self.mode}` needs `{wanted}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("mode",), what, f"`{wanted}`")
        given = {other: getattr(self, other)}
        given |= {"expire": self.expire_s} if self.mode == "stream" else {"maxLength": self.max_length}
        given |= {} if self.mode == "stream" else {"format": self.format}
        for name, value in given.items():
            if value is not None:
                what = f"`{name}` has no effect with `mode: {self.mode}`"
                yield ShapeProblem(codes.FIELDS_CONFLICT, (name,), what, "another `mode`, or remove it")

    @property
    def target(self) -> str:
        """The stream, or the prefix of the keys."""
        return self.stream or self.prefix or ""


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

        async def findings() -> Sequence[Finding]:
            found = await look(settings, place.base_dir)
            loc = "stream" if settings.mode == "stream" else "prefix"
            return [Finding(codes.TARGET_UNFIT, (*place.path, loc), what, expected) for what, expected in found]

        return findings()

    def notes(self, settings: RedisSink, path: Path) -> Iterator[tuple[Path, str]]:
        yield from notes_by_url(settings, path)

    def open(self, settings: RedisSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.redis_streams.sink.lane import open_redis_sink

        return open_redis_sink(settings, owner)


REDIS_STREAMS = _Redis()
