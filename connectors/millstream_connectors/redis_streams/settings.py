"""The settings of the `redisStreams` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.values import After, Flag, PositiveDuration, ShapeProblem, Strict, Text, field, without_effect
from millstream_connectors.shared.servers import ServerByUrl
from millstream_connectors.shared.starts import EARLIEST, Start

_PORTS = {"redis": 6379, "rediss": 6379}

_checked_url = address_check(
    "the address of a Redis server",
    _PORTS,
    "redis://host:port, or rediss:// with TLS, optionally followed by `/` and a database; set `user` and "
    "`password` separately",
    path=lambda path: path in ("", "/") or path.removeprefix("/").isdigit(),
)


class RedisServer(ServerByUrl):
    """A server, and the user that connects to it."""

    noun = "a redis connection"
    ports: ClassVar = _PORTS

    url: Annotated[Text, After(_checked_url)]
    """The server, `redis://host:port`, or `rediss://host:port` with TLS, optionally followed by `/` and the number of a
    database."""
    user: Text | None = None
    """Name of the user that connects. Default: the server's default user."""

    @property
    def database(self) -> int:
        """Number of the database."""
        return int(urlsplit(self.url).path.removeprefix("/") or 0)


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
        """The names, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.stream.split(",") if name.strip()))


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
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("mode",), f"`mode: {self.mode}` needs `{wanted}`", f"`{wanted}`")
        given = {other: getattr(self, other)}
        given |= {"expire": self.expire_s} if self.mode == "stream" else {"maxLength": self.max_length}
        given |= {} if self.mode == "stream" else {"format": self.format}
        yield from without_effect(given, f"with `mode: {self.mode}`", "another `mode`, or remove it")

    @property
    def target(self) -> str:
        """The stream, or the prefix of the keys."""
        return self.stream or self.prefix or ""
