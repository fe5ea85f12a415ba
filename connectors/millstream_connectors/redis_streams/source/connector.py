"""The `redisStreams` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.values import Flag, Text
from millstream_connectors.redis_streams.settings import RedisServer
from millstream_connectors.shared.servers import notes_by_url
from millstream_connectors.shared.starts import EARLIEST, Start
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class RedisSource(RedisServer):
    """Reads the entries of Redis streams; each stream is read by one lane, in order."""

    noun = "a redisStreams source"

    stream: Text
    """Key of the stream, or several separated by commas."""
    format: Literal["fields", "record"] = "fields"
    """How an entry becomes a record. `fields`: a JSON object with the entry's fields, as text. `record`: the record
    that the redisStreams sink has written, with its value, keys, event time and headers."""
    start: Start = EARLIEST
    """Where the first run starts: `earliest`, `latest`, or at the first entry since a time (RFC 3339, with an offset).
    Later runs continue after the entry of the last commit."""
    stop_at_end: Flag = False
    """End at the entry that is the last one when the first run starts."""
    consumer_group: Text | None = None
    """A group that is set to the lane's position after each commit, for tools that show lags. The source never reads
    it. Default: none."""

    @property
    def streams(self) -> Sequence[str]:
        """Rejects duplicates."""
        return tuple(dict.fromkeys(name.strip() for name in self.stream.split(",") if name.strip()))


class _Redis(SourceConnector[RedisSource]):
    encoded = True
    model = RedisSource
    meaning = "Entries of Redis streams."
    packages: ClassVar[Mapping[str, str]] = {"redis": "millstream[redis]"}
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the entry in its last commit")
    ends = "never, without `stopAtEnd`"
    strangers = True
    keys_are_bytes = True

    def unencoded(self, settings: RedisSource) -> str | None:
        return None if settings.format == "record" else "`format: record` of `redisStreams`"

    def bounded(self, settings: RedisSource) -> bool | None:
        return settings.stop_at_end

    def notes(self, settings: RedisSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from notes_by_url(settings, path)

    def online_findings(self, settings: RedisSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.redis_streams.source.lane import look

        async def findings() -> Sequence[Finding]:
            found = await look(settings, place.base_dir)
            return [Finding(codes.TARGET_UNFIT, (*place.path, "stream"), what, expected) for what, expected in found]

        return findings()

    def open(self, settings: RedisSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.redis_streams.source.lane import open_redis_source

        return open_redis_source(settings, owner)


REDIS_STREAMS = _Redis()
