"""Redis streams: one lane reads each, after the entry in the lane's mark.

    mark: entry, count ─► READ (entries after it, and number ever added) ─► frame, and the mark after it
                            ▲                                                           │
                            └────────── XREAD BLOCK, when there is nothing new ◄────────┘

A stream loses entries: XTRIM, MAXLEN and XDEL remove them, and a server may lose its newest ones. The count reveals
entries that were removed before they were read: Redis counts all entries that were ever added, so the number of entries
after the mark must equal the number added since. Groups serve only tools; the position does not depend on them.

Above it: a source lane. Below it: one connection to the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from redis import exceptions

from millstream import codes
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream.limits import REDIS_COUNT_ENTRIES, REDIS_READ_BYTES, REDIS_READ_ENTRIES_FIRST
from millstream.redis.client import script_of
from millstream_connectors.redis_streams.client import (
    FAILURES,
    StreamsLink,
    Word,
    hash_tag,
    in_cluster,
    looking,
    open_link,
    translated,
    warn_unless_durable,
)
from millstream_connectors.redis_streams.settings import RedisSource
from millstream_connectors.redis_streams.source.entries import (
    BEGINNING,
    Entry,
    EntryId,
    NotReadableError,
    parse_id,
    read_entry,
)
from millstream_connectors.shared.failing import Linked, on_failure_await
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.reaching import RemoteLane
from millstream_connectors.shared.record_batch import RecordBatch
from millstream_connectors.shared.starts import LATEST, start_time
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane

_TELL_EVERY_S = 1.0
"""Interval at which a group is set."""
_NUMBER_MAX = 2**64 - 1
"""The last entry of a millisecond."""

_log = logging.getLogger(__name__)

# What the server reports about a stream in one step. Lua in Redis 7 or Valkey.
READ = script_of("""
-- KEYS: the stream.  ARGV: an id, and the maximum number of entries after it.
-- Returns the kind of the key; how many entries were ever added, how many there are, the last id ever assigned, the
-- first remaining one (or ''); and the entries.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then return {kind, 0, 0, '0-0', '', {}} end
local told = redis.call('XINFO', 'STREAM', KEYS[1])
local of = {}
for i = 1, #told, 2 do of[told[i]] = told[i + 1] end
local first = of['first-entry'] and of['first-entry'][1] or ''
local found = {}
if ARGV[2] ~= '0' then found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2]) end
return {kind, of['entries-added'], of['length'], of['last-generated-id'], first, found}
""")

COUNT = script_of("""
-- KEYS: the stream.  ARGV: an id, and the maximum number of entries after it to count.
-- Returns how many there are, the id of the last of them, and how many entries were ever added to the stream.
if redis.call('TYPE', KEYS[1]).ok ~= 'stream' then return {0, ARGV[1], 0} end
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
local told = redis.call('XINFO', 'STREAM', KEYS[1])
local added = 0
for i = 1, #told, 2 do
  if told[i] == 'entries-added' then added = told[i + 1] end
end
return {#found, #found > 0 and found[#found][1] or ARGV[1], added}
""")


class _Told(NamedTuple):
    """The server's information about a stream."""

    kind: str
    added: int
    """Number of entries that were ever added."""
    length: int
    last: EntryId
    """The last id that was ever assigned."""
    first: EntryId | None
    """The first remaining entry; None if there is none."""
    entries: Sequence[Entry]


@dataclass(slots=True)
class _Stream:
    """One of the lane's streams."""

    name: str
    known: bool = False
    """Whether the lane's place in the stream is known."""
    at: EntryId = BEGINNING
    """The last entry that was read."""
    count: int = 0
    """Number of entries that were added up to and including it."""
    digest: str = ""
    """Digest of that entry; empty if none was read."""
    end: EntryId | None = None
    """The last entry to read, if the source has an end."""
    end_count: int = 0
    """Number of entries that were added up to it."""
    added: int = 0
    """Number of entries at the last request."""
    waiting: deque[Entry] = field(default_factory=deque)
    """Entries that were fetched and not read yet."""
    mean_bytes: float = 0.0
    """Recent average bytes of an entry."""

    @property
    def is_ended(self) -> bool:
        return self.end is not None and self.at >= self.end

    @property
    def pending(self) -> int:
        return max(0, (self.added if self.end is None else self.end_count) - self.count)

    @property
    def wanted(self) -> int:
        """How many entries to request: as many as fit into memory limits."""
        if not self.mean_bytes:
            return REDIS_READ_ENTRIES_FIRST
        return max(1, int(REDIS_READ_BYTES / self.mean_bytes))


class RedisSourceLane(Linked[StreamsLink], RemoteLane):
    """One lane. See `SourceLane`."""

    kind = "redisStreams"

    def __init__(self, spec: RedisSource, owner: SourceOwner) -> None:
        super().__init__(owner, _log)
        self._spec = spec
        self._streams = [_Stream(name) for name in spec.streams if self._owns(name)]
        self._warned = False
        self._to_tell = b""
        """The last committed position, if the group is not set to it yet."""
        self._next_tell_s = 0.0

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        self._restore()
        await self._connected()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if not any(stream.waiting for stream in self._streams) and not self._draining and not self._is_ended():
            await self._fill(records_max, timeout_s)
        return self._take(records_max, bytes_max)

    async def committed(self, position: bytes) -> None:
        self._to_tell = position

    def pending(self) -> int | None:
        return sum(stream.pending for stream in self._streams)

    async def tell_group(self) -> None:
        """Set the group to the last committed position, which is known, while the server is connected."""
        position, group, link = self._to_tell, self._spec.consumer_group, self._link
        if group is None or link is None or not position:
            return
        self._to_tell, self._next_tell_s = b"", self._now_s() + _TELL_EVERY_S
        body = self._unpacked(position)
        for name, (at, count, *_) in (body or {"at": {}})["at"].items():
            words: tuple[Word, ...] = (name, group, at, "ENTRIESREAD", count)
            try:
                await link.ask("XGROUP", "SETID", *words)
            except exceptions.ResponseError:
                with suppress(exceptions.ResponseError):
                    await link.ask("XGROUP", "CREATE", *words)

    # The lane's position

    def _restore(self) -> None:
        body = self._unpacked(self._owner.position)
        if body is None:
            return
        with self._restoring():
            gone = body["at"].keys() - {stream.name for stream in self._streams}
            for stream in self._streams:
                if stream.name in body["at"]:
                    at, count, digest, end, end_count = body["at"][stream.name]
                    stream.at, stream.count, stream.digest = parse_id(at), int(count), str(digest)
                    if end is not None and self._spec.stop_at_end:
                        stream.end, stream.end_count = parse_id(end), int(end_count)
                    stream.known = True
        if gone:
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: earlier runs read {', '.join(sorted(gone))}, which the pipeline no longer names. "
                "Change it back, or start over with --fresh",
            )

    def _position(self) -> bytes:
        at = {
            stream.name: (
                str(stream.at),
                stream.count,
                stream.digest,
                None if stream.end is None else str(stream.end),
                stream.end_count,
            )
            for stream in self._streams
        }
        return self._packed({"at": at})

    async def _connected(self) -> StreamsLink:
        """The connection, after every stream was checked on it. Raises Millstream errors."""
        if self._link is not None:
            return self._link
        spec, owner = self._spec, self._owner
        first = self._streams[0].name if self._streams else spec.streams[0]
        link = await open_link(spec, owner.base_dir, self._where, f"millstream {owner.lane}", first)
        async with on_failure_await(link.aclose):
            with translated(spec, self._where):
                if not self._warned:
                    await warn_unless_durable(link, self._where)
                    self._warned = True
                check_fit(self._where, await _faults(spec, link))
                for stream in self._streams:
                    if stream.known:
                        await self._check_past(link, stream)
                    else:
                        await self._begin(link, stream)
        self._link = link
        return link

    async def _begin(self, link: StreamsLink, stream: _Stream) -> None:
        """Where a first run begins. Entries that were removed before do not matter."""
        told = await _tell(link, stream.name, stream.at, 0)
        time = start_time(self._spec.start)
        wanted = None if time is None else EntryId(int(time.timestamp() * 1000) - 1, _NUMBER_MAX)
        if self._spec.start == LATEST or (wanted is not None and wanted >= told.last):
            stream.at, stream.count = told.last, told.added
        elif wanted is not None:
            stream.at = max(BEGINNING, wanted)
            left, added = await _left(link, stream.name, stream.at)
            stream.count = added - left
        else:
            stream.count = told.added - told.length
        if self._spec.stop_at_end:
            stream.end, stream.end_count = told.last, told.added
        stream.known = True

    async def _check_past(self, link: StreamsLink, stream: _Stream) -> None:
        """Check that the stream is the one that was read, and still has all unread entries."""
        told = await _tell(link, stream.name, stream.at, 0)
        if stream.is_ended:
            # What happens to the stream does not matter any more.
            return
        self._check(stream, told)
        if self._spec.stop_at_end and stream.end is None:
            stream.end, stream.end_count = told.last, told.added
        if told.last < stream.at:
            raise self._replaced(
                stream, f"the lane is at entry {stream.at}, but the last entry that the stream ever had is {told.last}"
            )
        if stream.digest:
            for entry in _entries(await link.ask("XRANGE", stream.name, str(stream.at), str(stream.at))):
                if entry.digest != stream.digest:
                    raise self._replaced(stream, f"entry {stream.at} is not the one that was read")
        left, added = await _left(link, stream.name, stream.at)
        missing = added - stream.count - left
        if missing > 0:
            raise self._removed(stream, missing)
        if missing < 0:
            raise self._replaced(
                stream, f"{-missing} more entries follow {stream.at} than were added since it was read"
            )

    def _check(self, stream: _Stream, told: _Told) -> None:
        """Raises if unread entries are missing, as far as this shows immediately."""
        if told.kind not in ("stream", "none"):
            what = f"{self._where}: the key {stream.name!r} is a {told.kind}, not a stream"
            raise UserError(codes.TARGET_UNFIT, f"{what}. Name a stream")
        if told.added < stream.count:
            raise self._replaced(
                stream, f"only {told.added} entries were ever added to it, but {stream.count} were read"
            )
        if told.first is None or told.first > stream.at:
            missing = told.added - stream.count - told.length
            if missing > 0:
                raise self._removed(stream, missing)

    def _removed(self, stream: _Stream, count: int) -> DamageError:
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._where}: {stream.name}: {count} entries after {stream.at} were removed before they were read "
            "(MAXLEN or MINID of a writer, XTRIM, XDEL). Nothing else was skipped. Read the remaining entries with "
            "a source of another name, or start over with --fresh; and let the stream keep more",
        )

    def _replaced(self, stream: _Stream, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._where}: {stream.name}: {what}: the stream was recreated, or the server lost its latest data or "
            "was rolled back (with `appendfsync always` it keeps everything that it confirms). Restore its data, "
            "read what it has now with a source of another name, or start over with --fresh",
        )

    # Reading

    async def _fill(self, records_max: int, timeout_s: float) -> None:
        """Wait for entries, up to the timeout."""
        if not self._streams:
            await asyncio.sleep(timeout_s)
            return
        if not await self._reaching.may_try(timeout_s):
            return
        try:
            async with on_failure_await(self.close):
                with translated(self._spec, self._where):
                    link = await self._connected()
                    if self._now_s() >= self._next_tell_s:
                        await self.tell_group()
                    if not await self._look(link, records_max) and await self._wait(link, timeout_s):
                        await self._look(link, records_max)
            self._reaching.worked()
        except RetryLaterError as error:
            self._reaching.failed(error)

    async def _look(self, link: StreamsLink, records_max: int) -> bool:
        """Whether entries are waiting now."""
        for stream in self._streams:
            if stream.is_ended:
                continue
            told = await _tell(link, stream.name, stream.at, min(records_max, stream.wanted))
            self._check(stream, told)
            stream.added = told.added
            if told.entries:
                size = sum(entry.size for entry in told.entries) / len(told.entries)
                stream.mean_bytes = max(size, (stream.mean_bytes + size) / 2)
            end = stream.end
            stream.waiting.extend(entry for entry in told.entries if end is None or entry.id <= end)
            if end is not None and not stream.waiting:
                if stream.end_count > stream.count:
                    raise self._removed(stream, stream.end_count - stream.count)
                # The last entry was removed before the first run: there is no digest for its place.
                stream.at, stream.digest = end, ""
        return any(stream.waiting for stream in self._streams) or self._is_ended()

    async def _wait(self, link: StreamsLink, timeout_s: float) -> bool:
        """Whether an entry was added before the timeout."""
        streams = [stream for stream in self._streams if not stream.is_ended]
        words: list[Word] = ["BLOCK", max(1, round(timeout_s * 1000)), "COUNT", 1, "STREAMS"]
        words += [stream.name for stream in streams] + [str(stream.at) for stream in streams]
        return await link.ask("XREAD", *words, wait_s=timeout_s) is not None

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch:
        """The next batch."""
        whole, batch = self._spec.format == "record", RecordBatch("the entry")
        for stream in self._streams:
            while stream.waiting and len(batch.values) < records_max:
                entry = stream.waiting[0]
                if not batch.fits(entry.size, bytes_max):
                    break
                stream.waiting.popleft()
                stream.at, stream.digest, stream.count = entry.id, entry.digest, stream.count + 1
                try:
                    read = read_entry(entry, whole=whole, key_mapping=self._owner.key_mapping)
                except NotReadableError as error:
                    batch.refuse(error.value, str(error), f"entry {entry.id} of {stream.name}")
                else:
                    # What is too large was refused above, so no message needs the place.
                    batch.add(read.value, read.event_time_us, "", size=entry.size, keys=read.keys, headers=read.headers)
        frame = batch.frame(self._owner.clock.now_us())
        return SourceBatch(frame, self._position(), ended=self._is_ended(), invalid=tuple(batch.invalid))

    def _is_ended(self) -> bool:
        return self._spec.stop_at_end and all(stream.is_ended for stream in self._streams)


def _entries(answer: Any) -> list[Entry]:
    return [Entry(parse_id(name), fields or ()) for name, fields in answer or ()]


async def _tell(link: StreamsLink, stream: str, at: EntryId, entries: int) -> _Told:
    kind, added, length, last, first, found = await link.run(READ, [stream], [str(at), entries])
    return _Told(kind.decode(), added, length, parse_id(last), parse_id(first) if first else None, _entries(found))


async def _left(link: StreamsLink, stream: str, at: EntryId) -> tuple[int, int]:
    """How many entries follow, and how many were ever added to the stream, at the same moment."""
    count = 0
    while True:
        found, last, added = await link.run(COUNT, [stream], [str(at), REDIS_COUNT_ENTRIES])
        count += found
        if found < REDIS_COUNT_ENTRIES:
            return count, added
        at = parse_id(last)


async def _faults(spec: RedisSource, link: StreamsLink) -> list[Fault]:
    """What does not fit the settings."""
    kinds = [(name, (await link.ask("TYPE", name)).decode()) for name in spec.streams]
    faults = [
        Fault(("stream",), f"the key {name!r} is a {kind}", "a stream, or a key that does not exist")
        for name, kind in kinds
        if kind not in ("stream", "none")
    ]
    if len({hash_tag(name) for name in spec.streams}) > 1 and await in_cluster(link):
        what = "in a cluster these streams may be on different servers"
        faults.append(Fault(("stream",), what, "one source for each stream, or a hash tag, `{orders}:a`"))
    return faults


async def look(spec: RedisSource, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings. Raises Millstream errors if it cannot be reached."""
    async with looking(spec, base_dir, spec.streams[0]) as link:
        faults = await _faults(spec, link)
        if not faults:
            await _tell(link, spec.streams[0], BEGINNING, 1)
        return faults


@asynccontextmanager
async def open_redis_source(spec: RedisSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`."""
    lane = RedisSourceLane(spec, owner)
    try:
        await lane.open()
        yield lane
        with suppress(*FAILURES):
            await lane.tell_group()
    finally:
        await lane.close()
