"""The Redis sink: records and the lane's position in one script.

    write ─► records after the position ─► COMMIT  is the lane still ours? do the kinds of the keys fit?
                                                    XADD, HSET or SET of each record, then the position

The position is a hash beside the records; in a cluster, it is in the slot of their keys. It names the owner that opened
the lane last, with a new name for every connection, and only that owner's scripts write anything. So an older owner has
no effect, however late it resumes, and neither has a script from an abandoned connection. If an answer is lost, the
lane is taken over again, and the position is read.

Above it: the delivery. Below it: the scripts, the link, and the conversion of records (`entries`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from uuid import uuid4

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError, UserError
from millstream.limits import REDIS_COMMIT_RECORDS_MAX
from millstream.record import Position
from millstream_connectors.redis_streams.client import (
    StreamsLink,
    Word,
    hash_tag,
    in_cluster,
    looking,
    open_link,
    pairs,
    translated,
    warn_unless_durable,
)
from millstream_connectors.redis_streams.settings import RedisSink
from millstream_connectors.redis_streams.sink.entries import Put, convert
from millstream_connectors.redis_streams.sink.script import COMMIT, OWN
from millstream_connectors.shared.failing import Linked, on_failure_await
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.first_try import opened
from millstream_connectors.shared.kept import ConvertedRecords, KeptLane, TargetPosition, check_kept, fenced
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane

_log = logging.getLogger(__name__)


def position_key(settings: RedisSink, pipeline: str, name: str) -> str:
    """The key of a lane's position."""
    return f"millstream:{{{hash_tag(settings.target)}}}:{pipeline}/{name}"


class RedisSinkLane(Linked[StreamsLink], KeptLane[Put]):
    """The lane's connection, which is opened when it is needed, and reopened when it is lost. A script in progress may
    still take effect after it was closed."""

    def __init__(self, settings: RedisSink, owner: SinkOwner) -> None:
        super().__init__(owner, REDIS_COMMIT_RECORDS_MAX)
        self._settings = settings
        self._key = position_key(settings, owner.pipeline, owner.name)
        self._token = ""
        self._warned = False

    def _convert(self, item: SinkFrame) -> ConvertedRecords[Put]:
        return convert(self._settings, item)

    async def _commit(self, made: Sequence[Put], end: Position, frame: str) -> None:
        """One script: records and the position after them."""
        settings, owner = self._settings, self._owner
        keys: list[Word] = [self._key]
        keys += [settings.target] if settings.mode == "stream" else [put.key for put in made]
        limit = settings.max_length or (settings.expire_s and max(1, round(settings.expire_s * 1000))) or ""
        words: list[Word] = [self._token, settings.mode, *end, frame, limit]
        for put in made:
            words.append(len(put.words))
            words += put.words
        assert self._link is not None, "it is used only in a session"
        with step("redis_sink.commit", owner.lane.vertex):
            what, *more = await self._link.run(COMMIT, keys, words)
        if what == b"other":
            raise await self._replaced(self._link)
        if what == b"kind":
            key, kind = (text.decode(errors="replace") for text in more)
            what = f"{owner.where}: the key {key!r} is a {kind}, and `mode: {settings.mode}` needs a {settings.mode}"
            raise UserError(
                codes.TARGET_UNFIT, f"{what}. Remove it, or name another key. Nothing of the batch was written"
            )

    async def _replaced(self, link: StreamsLink) -> Exception:
        """The error if the lane no longer belongs to this owner."""
        if await link.ask("EXISTS", self._key):
            return fenced(self._owner, self._settings.target)
        return self._lost()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[StreamsLink]:
        """The connection, after the lane was taken over on it. It is closed at the first failure."""
        async with on_failure_await(self.close):
            with translated(self._settings, self._owner.where):
                if self._link is None:
                    self._link = await self._opened()
                yield self._link

    async def _opened(self) -> StreamsLink:
        owner = self._owner
        link = await open_link(
            self._settings, owner.base_dir, owner.where, f"millstream {owner.pipeline}/{owner.name}", self._key
        )
        async with on_failure_await(link.aclose):
            if not self._warned:
                await warn_unless_durable(link, owner.where)
                self._warned = True
            check_fit(owner.where, await _faults(self._settings, link))
            await self._take_over(link)
        return link

    async def _take_over(self, link: StreamsLink) -> None:
        """Fence every earlier owner, and read the position in the target."""
        owner, token = self._owner, f"{self._owner.identity}.{uuid4().hex}"
        fresh = (owner.ledger_id, *owner.start)
        target, remedy = self._settings.target, self._by_hand()
        while True:
            kept = _kept(await link.ask("HGETALL", self._key))
            if kept is None and not owner.fallback and (self._token or owner.start > Position(0)):
                raise self._lost()
            if kept is not None:
                await check_kept(owner, kept, target, remedy, ours=kept.owner.startswith(self._owner.identity))
            seen = kept.owner if kept is not None else ""
            with step("redis_sink.take_over", owner.lane.vertex):
                owned = _kept(await link.run(OWN, [self._key], [seen, token, owner.epoch, *fresh]))
            if owned is not None:
                break
        # The previous owner may have committed since the position was read.
        await check_kept(owner, owned, target, remedy, ours=True)
        self._token = token
        self._durable = max(self._durable, owned.position)

    def _lost(self) -> DamageError:
        return DamageError(
            codes.TARGET_POSITION_LOST,
            f"{self._owner.where}: the lane has written to {self._settings.target} up to sequence "
            f"{self._durable.sequence}, but the key {self._key!r} that records this is missing: Redis lost it at a "
            f"restart, or it was removed. Nothing was written now. See which records are there; {self._by_hand()}",
        )

    def _by_hand(self) -> str:
        """Instructions for the user to confirm that the lane's mark is right."""
        run, (sequence, record) = self._owner.ledger_id, self._owner.start
        return (
            f"to let the lane continue after its mark: `HSET '{self._key}' run {run} epoch 0 owner '' sequence "
            f"{sequence} record {record} frame ''`"
        )


def _kept(answer: Sequence[bytes]) -> TargetPosition | None:
    if not answer:
        return None
    found = {name: value.decode(errors="replace") for name, value in pairs(answer).items()}
    at = Position(int(found["sequence"]), int(found["record"]))
    return TargetPosition(found["run"], int(found["epoch"]), found["owner"], at, found["frame"])


async def _faults(settings: RedisSink, link: StreamsLink) -> list[Fault]:
    """What does not fit the settings."""
    target = settings.target
    if settings.mode == "stream":
        kind = (await link.ask("TYPE", target)).decode()
        if kind in ("none", "stream"):
            return []
        return [Fault(("stream",), f"the key {target!r} is a {kind}", "a stream, or a key that does not exist")]
    if hash_tag(target) == target and await in_cluster(link):
        what = f"in a cluster the keys that begin with {target!r} are on several servers"
        return [Fault(("prefix",), what, "a hash tag, `{orders}:`")]
    return []


async def look(settings: RedisSink, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings. Raises Millstream errors if it cannot be reached."""
    async with looking(settings, base_dir, position_key(settings, "", "")) as link:
        return await _faults(settings, link)


def open_redis_sink(settings: RedisSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
    """Opens the lane's target and fences every former owner. If the server is away, the first write waits for it."""
    return opened(RedisSinkLane(settings, owner), _log)
