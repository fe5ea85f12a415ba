"""A server that is polled, and the records of its answers.

    mark: cursor, records read after it ─► GET ─► records ─► frame, with the cursor before them
                                                └─► the next cursor, once all are read

With a cursor, the position identifies an answer and has the number and a digest of its records that were read: after a
crash the same request is repeated, and those records are skipped. A server that answers differently stops the lane.
Without a cursor, the lane keeps the headers that identify an old answer (`ETag`, `Last-Modified`), from the first
record of the answer on, so that no record is read twice.

Above it: a source lane. Below it: a session of aiohttp.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from yarl import URL

from millstream import codes
from millstream.background import open_tasks
from millstream.errors import DamageError, MillstreamError, UserError
from millstream.frame import build_frame
from millstream.limits import RECORD_BYTES_MAX
from millstream.spec.references import resolve
from millstream_connectors.http_poll.settings import HttpPollSource
from millstream_connectors.http_poll.source.answers import Answer, read_answer
from millstream_connectors.shared.messages import size_of, too_large
from millstream_connectors.shared.reaching import RemoteLane
from millstream_connectors.shared.web.client import AskedToWaitError, WebLink, linked, translated
from millstream_connectors.shared.web.settings import HTTP
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane

_OK, _NO_CONTENT, _UNCHANGED, _GONE = 200, 204, 304, 410

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Got:
    """The result of a request."""

    answer: Answer | None
    """The answer; None if it has not changed."""
    validators: Mapping[str, str] = field(default_factory=dict)
    """Headers for a conditional request of the same answer."""


class _Given:
    """Number and digest of the records of an answer that were read."""

    def __init__(self) -> None:
        self.records = 0
        self._hash = blake2b(digest_size=8)

    def add(self, values: Sequence[bytes]) -> None:
        self.records += len(values)
        for value in values:
            self._hash.update(b"%d:" % len(value))
            self._hash.update(value)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest() if self.records else ""


class HttpPollLane(RemoteLane):
    """One lane. See `SourceLane`."""

    kind, noun = "httpPoll", "an httpPoll source"

    def __init__(self, settings: HttpPollSource, owner: SourceOwner, link: WebLink, tasks: asyncio.TaskGroup) -> None:
        super().__init__(owner, _log)
        self.replayable = settings.cursor is not None
        self._settings = settings
        self._link = link
        self._idle = owner.lane.partition != 0
        """Whether another lane polls instead."""
        cursor = settings.cursor
        self._by = "" if cursor is None else f"{cursor.parameter or ''} {cursor.path or cursor.record_field or 'Link'}"
        """The settings that give the cursor in a position its meaning."""
        self._cursor = ""
        """The cursor before the records of the answer. Without cursors, the URL or number of the page; empty for the
        first request."""
        self._given = _Given()
        self._expected: tuple[int, str] | None = None
        """Number and digest of the records after the cursor that an earlier owner has read."""
        self._validators: Mapping[str, str] = {}
        self._polls = 0
        self._rest: Sequence[bytes] = ()
        """The rest of the answer."""
        self._following: str | None = None
        self._ended = False
        self._asking: asyncio.Task[_Got | MillstreamError] | None = None
        self._tasks = tasks

    async def open(self) -> None:
        """Send the first request. Errors: those of `SourceConnector.open`."""
        self._restore()
        if not self._idle:
            self._accept(await self._request())

    def stop(self) -> None:
        """Send no more requests."""
        if self._asking is not None:
            self._asking.cancel()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if self._idle:
            await asyncio.sleep(timeout_s)
        elif not self._rest and not self._draining and not self._ended:
            await self._poll(timeout_s)
        return self._take(records_max, bytes_max)

    def pending(self) -> int | None:
        return len(self._rest)

    async def drain(self) -> None:
        self._draining = True
        self.stop()

    # The lane's position

    def _restore(self) -> None:
        owner, cursor = self._owner, self._settings.cursor
        body = self._unpacked(owner.position)
        if body is None:
            if cursor is not None and cursor.start is not None:
                self._cursor = resolve(cursor.start, owner.base_dir, f"{owner.where}: cursor.start")
            return
        with self._restoring():
            by, place, records, digest = str(body["by"]), str(body["cursor"]), int(body["given"]), str(body["digest"])
            validators = {str(name): str(text) for name, text in body["validators"].items()}
            self._polls = int(body["polls"])
        if by != self._by:
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{owner.where}: `cursor` differs from that of earlier runs, so the stored position does not apply to "
                "it; change it back, or start over with --fresh",
            )
        if cursor is None:
            # The records of an answer that an earlier owner had not read are lost: delivery is at most once.
            self._validators = validators
            return
        self._cursor = place
        if records:
            self._expected = (records, digest)

    def _position(self) -> bytes:
        given = _Given() if self._settings.cursor is None else self._given
        return self._packed(
            {
                "by": self._by,
                "cursor": self._cursor if self._settings.cursor is not None else "",
                "given": given.records if self._expected is None else self._expected[0],
                "digest": given.digest if self._expected is None else self._expected[1],
                "validators": {} if self._settings.cursor is not None else dict(self._validators),
                "polls": self._polls,
            },
        )

    # Requests

    async def _poll(self, timeout_s: float) -> None:
        """Send a request if it is due, and wait for the answer as long as a read may."""
        if self._asking is None:
            if not await self._reaching.may_try(timeout_s):
                return
            self._asking = self._tasks.create_task(self._asked(), name=f"poll {self._owner.lane}")
        done, _ = await asyncio.wait((self._asking,), timeout=timeout_s)
        if not done:
            return
        asking, self._asking = self._asking, None
        got = asking.result()
        if isinstance(got, MillstreamError):
            self._reaching.failed(got)
            if isinstance(got, AskedToWaitError) and got.delay_s:
                self._reaching.rest(got.delay_s)
            return
        self._reaching.worked()
        self._accept(got)

    async def _asked(self) -> _Got | MillstreamError:
        try:
            return await self._request()
        except MillstreamError as error:
            return error

    async def _request(self) -> _Got:
        cursor = self._settings.cursor
        # No conditional requests while records of the answer may still be skipped by number.
        conditional = self._validators if self._expected is None and (cursor is not None or not self._cursor) else {}
        after = self._cursor if cursor is not None else ""
        return await _ask(self._settings, self._link, self._url(), conditional, after)

    def _url(self) -> URL:
        way, first = self._settings.cursor or self._settings.pages, URL(self._link.url)
        if way is None:
            return first
        if way.parameter is not None:
            place = self._cursor or ("1" if self._settings.cursor is None else "")
            return first.update_query({way.parameter: place}) if place else first
        if not self._cursor:
            return first
        following = urljoin(self._link.url, self._cursor)
        if _origin(following) != _origin(self._link.url):
            # That would send it headers with secrets.
            raise self._link.unfit("refers to another server for the next page, which is not followed")
        return URL(following, encoded=True)

    def _accept(self, got: _Got) -> None:
        """Queue the records of an answer, without those that were already read."""
        answer, by_cursor = got.answer, self._settings.cursor is not None
        if answer is None:
            self._done(None, new=False)
            return
        if not self._cursor and not by_cursor:
            self._polls += 1
        expected = self._expected or (self._given.records, self._given.digest)
        self._given, self._expected, left_out = _Given(), None, 0
        if by_cursor:
            left_out = expected[0]
            self._given.add(answer.records[:left_out])
            if (self._given.records, self._given.digest) != expected:
                raise DamageError(
                    codes.SOURCE_DIFFERS,
                    f"{self._link.where}: {self._link.place} had {left_out} records after the cursor "
                    f"{self._cursor[:80]!r} that were read, and now returns different ones",
                )
            if self._cursor and self._cursor in answer.cursors:
                raise self._link.unfit(
                    f"was asked for the records after the cursor {self._cursor[:80]!r}, but returns the record at the "
                    "cursor: it ignores the cursor or includes that record, or `cursor.recordField` is not unique. "
                    "Nothing was repeated. Correct `cursor`"
                )
        self._rest, self._following = answer.records[left_out:], answer.following
        if by_cursor or not self._cursor:
            self._validators = got.validators
        if not self._rest:
            self._done(answer.following, new=False)

    def _done(self, following: str | None, *, new: bool) -> None:
        """An answer is read completely: determine the next request and its time. `new`: whether it had new records."""
        settings = self._settings
        if settings.pages is not None and settings.pages.parameter is not None:
            following = str(int(self._cursor or "1") + 1) if new else None
        moved = following is not None and following != self._cursor
        if moved or settings.pages is not None:
            self._cursor, self._given = following or "" if moved else "", _Given()
        if moved and settings.cursor is not None:
            # They belong to another answer.
            self._validators = {}
        if moved and (new or settings.pages is not None):
            return
        self._ended = settings.stop_at_end and not moved
        self._reaching.rest(settings.interval_s)

    # Reads

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch:
        taken: list[bytes] = []
        size = 0
        for value in self._rest[:records_max]:
            if taken and size + len(value) > bytes_max:
                break
            taken.append(value)
            size += len(value)
        if taken:
            self._given.add(taken)
            self._rest = self._rest[len(taken) :]
            if not self._rest:
                self._done(self._following, new=True)
        ended = self._ended and not self._rest
        sizes = [size_of(value, {}) for value in taken]
        large = [(value, size) for value, size in zip(taken, sizes, strict=True) if size > RECORD_BYTES_MAX]
        good = [value for value, size in zip(taken, sizes, strict=True) if size <= RECORD_BYTES_MAX]
        now_us, frame = self._owner.clock.now_us(), None
        if good:
            frame = build_frame(good, array("q", [now_us] * len(good)), ingest_time_us=now_us)
        invalid = tuple(too_large(value, size, self._link.place) for value, size in large)
        return SourceBatch(frame, self._position(), ended, invalid)


async def _ask(
    settings: HttpPollSource, link: WebLink, url: URL, conditional: Mapping[str, str], cursor: str = ""
) -> _Got:
    """The answer to a request, which asks for what follows `cursor`; empty if it has none."""
    headers = {"Accept": "application/json" if settings.body == "json" else "*/*", **conditional}
    with translated(link):
        async with link.session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status == _UNCHANGED and conditional:
                return _Got(None)
            if response.status == _NO_CONTENT:
                return _Got(Answer((), None))
            if response.status == _GONE and cursor:
                what = "no longer knows the cursor in the position (status 410): records were removed"
                raise DamageError(codes.SOURCE_RECORDS_REMOVED, f"{link.where}: {link.place} {what}")
            if response.status != _OK:
                raise link.refused(response.status, response.headers)
            body = await response.read()
    following = response.links["next"]["url"] if "next" in response.links else None
    try:
        answer = read_answer(body, settings, None if following is None else str(following))
    except ValueError as error:
        raise link.unfit(f"gives an answer that does not fit the settings: {error}") from error
    pairs = {"If-None-Match": response.headers.get("ETag"), "If-Modified-Since": response.headers.get("Last-Modified")}
    return _Got(answer, {name: text for name, text in pairs.items() if text is not None})


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


async def look(settings: HttpPollSource, base_dir: Path) -> None:
    """Raises Millstream errors if the server's answer does not fit the settings."""
    async with linked(settings, base_dir, "validate --online", HTTP) as link:
        await _ask(settings, link, URL(link.url), {})


@asynccontextmanager
async def open_http_poll(settings: HttpPollSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`. Only one of several lanes polls."""
    async with AsyncExitStack() as life:
        link = await life.enter_async_context(linked(settings, owner.base_dir, owner.where, HTTP))
        lane = HttpPollLane(settings, owner, link, await life.enter_async_context(open_tasks()))
        try:
            await lane.open()
            yield lane
        finally:
            lane.stop()
