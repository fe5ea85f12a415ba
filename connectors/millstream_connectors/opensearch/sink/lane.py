"""The OpenSearch sink: records as documents, by bulk requests.

    insert: write ─► bulk of `create`, ids of run and record ─► created, or exists already: written
    upsert: open ─► a new number for this owner ─► write ─► bulk of `index` and `delete`, with versions
                                                             └─ written, or a newer one exists: written

Kills, lost answers and late requests do not change the result, in any order, because a document is created once and its
version never decreases. Items for which the server lacks capacity are retried. Other rejections are permanent.

Above it: the delivery. Below it: the lines (`documents`), and aiohttp.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import ClientResponse

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError, MillstreamError, UserError
from millstream.json_parser import parse_json
from millstream.limits import OPENSEARCH_OWNER_KNOWN_S
from millstream.plurals import counted
from millstream.record import Position
from millstream_connectors.opensearch.settings import OpenSearchSink
from millstream_connectors.opensearch.sink.documents import (
    CONFLICT,
    FRAMES_MAX,
    OWNERS_MAX,
    TOO_LARGE,
    Misfit,
    OwnerVersions,
    Put,
    convert,
    judged,
)
from millstream_connectors.shared.kept import fenced
from millstream_connectors.shared.requests import requests_of
from millstream_connectors.shared.web.client import WebLink, body_of, linked, translated
from millstream_connectors.shared.web.settings import HTTP
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import Guarantee, SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

_log = logging.getLogger(__name__)

_NDJSON = "application/x-ndjson"
_ONLY = "?filter_path=items.*.status,items.*.error"
_LOOKED_AT = "docs.found,docs._version,docs.error.type,docs.error.reason"
"""`found` is there for every document that could be read, so the answer is never empty."""
_CONFLICTS_MAX = 20


class OpenSearchSinkLane(UnkeptLane):
    """The session of one lane. It sends one request at a time."""

    guarantee = Guarantee.EXACTLY_ONCE_IDEMPOTENT
    gathers = True

    def __init__(self, settings: OpenSearchSink, owner: SinkOwner, link: WebLink) -> None:
        self._settings = settings
        self._owner = owner
        self._link = link
        base, name = link.url.rstrip("/"), f"{owner.pipeline}/{owner.name}"
        self._index = f"{base}/{quote(settings.index, safe='')}"
        self._lane_document = f"{base}/{quote(settings.lanes_index, safe='')}/_doc/{quote(name, safe='')}"
        """Address of the document with the number of the lane's owner."""
        self._bytes_max = settings.max_bytes
        """Of a request. Half of the smallest one that was too large for the server, if there was one."""
        self._owned: OwnerVersions | None = None
        """The versions of this owner with `upsert`, once they are known."""
        self._checked_at_s = 0.0
        """When this lane was known to belong to this owner."""

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        puts: list[Put] = []
        failures: list[list[SinkFailure]] = []
        for number, item in enumerate(frames):
            made, unfit = convert(item, self._settings, self._owner.ledger_id, await self._versions(item.sequence))
            puts += made if number == 0 else [put._replace(number=number) for put in made]
            failures.append(unfit)
        # A request may have records of several frames: a small frame takes as long as a large one.
        for batch in requests_of(puts, attrgetter("size"), self._bytes_max):
            for put, failure in await self._send(batch):
                failures[put.number].append(failure)
        for found in failures:
            found.sort(key=lambda failure: failure.index)
        return WriteResult(failures if any(failures) else ())

    async def _send(self, batch: Sequence[Put]) -> list[tuple[Put, SinkFailure]]:
        """Send writes in one request, or in smaller ones if the server accepts none of that size."""
        items = await self._answers(batch)
        if items is None:
            return await self._divided(batch)
        failures = []
        newer = []
        for put, item in zip(batch, items, strict=True):
            if put.id and any(found["status"] == CONFLICT for found in item.values()):
                newer.append(put.id)
            misfit = judged(item)
            if misfit is None:
                continue
            if misfit.everything:
                raise self._unusable(misfit)
            detail, retryable = misfit.detail, misfit.retryable
            failures.append((put, SinkFailure(put.row, misfit.reason, retryable, detail=detail, shows_value=True)))
        if newer:
            await self._check_newer(newer)
        return failures

    async def _answers(self, batch: Sequence[Put]) -> Sequence[Mapping[str, Any]] | None:
        """The answer to each write; None if the request is too large for the server."""
        body = b"".join(put.lines for put in batch)
        headers = {"Content-Type": _NDJSON}
        if self._settings.delete_when is not None:
            await self._check_owner()
        if self._settings.compression == "gzip":
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        with translated(self._link), step("opensearch_sink.bulk", self._owner.lane.vertex):
            async with self._link.session.post(
                f"{self._index}/_bulk{_ONLY}", data=body_of(body), headers=headers, allow_redirects=False
            ) as response:
                if response.status == 413:
                    return None
                items: Sequence[Mapping[str, Any]] = (await self._answer(response, "items"))["items"]
                return items

    async def _divided(self, batch: Sequence[Put]) -> list[tuple[Put, SinkFailure]]:
        """Send writes that are too large for one request, in order. A single one cannot be divided, so it fails."""
        size = sum(put.size for put in batch)
        if len(batch) == 1:
            detail = f"the server accepts no request of {size} bytes"
            return [(batch[0], SinkFailure(batch[0].row, TOO_LARGE, retryable=False, detail=detail))]
        # The same server would refuse later requests of this size, too.
        self._bytes_max = min(self._bytes_max, size // 2)
        _log.warning(
            "%s: %s accepts no request of %d bytes, so it gets smaller ones. Lower `maxBytes`, or let the server and "
            "the proxies in front of it accept more",
            self._owner.where,
            self._link.place,
            size,
        )
        return [
            failed
            for half in requests_of(batch, attrgetter("size"), self._bytes_max)
            for failed in await self._send(half)
        ]

    async def _check_newer(self, ids: Sequence[str]) -> None:
        """Raises an error if a later owner, or another lane, has written a newer version of one of the documents.

        Conflicts are rare: an owner's first attempt never conflicts with its own versions.
        """
        owned, owner, settings = self._owned, self._owner, self._settings
        assert owned is not None, "there are no conflicts without versions"
        place = f"{self._index}/_mget?filter_path={_LOOKED_AT}"
        with translated(self._link):
            async with self._link.session.post(place, json={"ids": ids}, allow_redirects=False) as response:
                found = (await self._answer(response, "docs"))["docs"]
        for one in found:
            if (error := one.get("error")) is not None:
                raise self._link.away(f"does not show a document of {settings.index} now: {error.get('reason', error)}")
        if not any(owned.is_newer(int(one.get("_version", 0))) for one in found):
            return
        await self._check_newest(owned)
        raise DamageError(
            codes.SINK_AHEAD,
            f"{owner.where}: a document of {settings.index} has a version that lane {owner.name} has not reached: "
            f"another lane or pipeline writes the same ids, or {settings.lanes_index} was deleted. The record was not "
            f"written. Let records with the same id reach one lane, by their key; or write to a new index",
        )

    async def _answer(self, response: ClientResponse, member: str) -> Mapping[str, Any]:
        """A successful answer, which has this member. Raises `UserError` for one of something else, such as a proxy."""
        body = await response.read()
        if response.status != 200:
            raise self._refused(response.status, response.headers, body)
        found = _object_in(body)
        if member not in found:
            raise self._link.unfit(f"answers unlike OpenSearch, without `{member}`: {body[:100]!r}. Correct `url`")
        return found

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> MillstreamError:
        """The error for a request that was rejected as a whole."""
        error = _object_in(body).get("error")
        if status == 404 and isinstance(error, dict):
            return self._unusable(Misfit(str(error.get("type", "")), str(error.get("reason", "")), retryable=False))
        return self._link.refused(status, headers)

    def _unusable(self, misfit: Misfit) -> MillstreamError:
        """The error for a reason that concerns all records."""
        if misfit.retryable:
            return self._link.away(f"does not write to {self._settings.index} now: {misfit.detail}")
        if misfit.reason == "index_not_found_exception":
            what = f"lacks an index, and does not create it: {misfit.detail}"
            return self._link.unfit(f"{what}. Create it, or let `action.auto_create_index` include it")
        what = f"{self._owner.where}: {self._link.place} does not let the user write to {self._settings.index}"
        return UserError(codes.TARGET_REFUSES, f"{what}: {misfit.reason}: {misfit.detail}")

    # The number of the owner

    async def _check_owner(self) -> None:
        """Raises an error if the lane has a later owner. The server forgets the versions of deleted documents after a
        minute, and would then create them again for an owner that stood still for so long."""
        owned, clock = self._owned, self._owner.clock
        assert owned is not None, "documents are only deleted with `upsert`"
        now_s = clock.monotonic_s()
        if now_s - self._checked_at_s < OPENSEARCH_OWNER_KNOWN_S:
            return
        await self._check_newest(owned)
        self._checked_at_s = now_s

    async def _check_newest(self, owned: OwnerVersions) -> None:
        number, _ = await self._former()
        if number > owned.number:
            raise fenced(self._owner, self._settings.index)

    async def _versions(self, sequence: int) -> OwnerVersions | None:
        if self._settings.mode != "upsert":
            return None
        if self._owned is None or sequence - self._owned.first >= FRAMES_MAX:
            self._owned = OwnerVersions(await self._take_over(), sequence)
        return self._owned

    async def _take_over(self) -> int:
        """Reserve a number above those of all earlier owners of the lane. A lost answer leaves a number unused."""
        owner, settings = self._owner, self._settings
        for _ in range(_CONFLICTS_MAX):
            self._checked_at_s = owner.clock.monotonic_s()
            number, condition = await self._former()
            if number + 1 >= OWNERS_MAX:
                what = f"{owner.where}: lane {owner.name} has had {counted(number, 'owner')}, more than versions count"
                raise DamageError(codes.TARGET_POSITION_LOST, f"{what}. Write to another index")
            body = {"run": owner.ledger_id, "epoch": owner.epoch, "number": number + 1}
            with translated(self._link), step("opensearch_sink.take_over", owner.lane.vertex):
                async with self._link.session.put(
                    f"{self._lane_document}?{condition}&refresh=true", json=body, allow_redirects=False
                ) as response:
                    if response.status in (200, 201):
                        return number + 1
                    if response.status != 409:
                        raise self._refused(response.status, response.headers, await response.read())
        raise self._link.away(f"changes the document of lane {owner.name} in {settings.lanes_index} all the time")

    async def _former(self) -> tuple[int, str]:
        """The number of the previous owner, and the condition under which the next one replaces it."""
        owner = self._owner
        with translated(self._link):
            async with self._link.session.get(self._lane_document, allow_redirects=False) as response:
                if response.status == 404:
                    return 0, "op_type=create"
                found = await self._answer(response, "_source")
        kept: Mapping[str, Any] = found["_source"]
        if kept["run"] == owner.ledger_id and kept["epoch"] > owner.epoch:
            raise fenced(owner, self._settings.index)
        return int(kept["number"]), f"if_seq_no={found['_seq_no']}&if_primary_term={found['_primary_term']}"


def _object_in(body: bytes) -> Mapping[str, Any]:
    """The JSON object that is an answer; an empty one if it is something else."""
    try:
        found = parse_json(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@asynccontextmanager
async def open_opensearch_sink(settings: OpenSearchSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """A session for one lane. If the server is away, the first write waits for it."""
    async with linked(settings, owner.base_dir, f"{owner.where}: the opensearch sink", HTTP) as link:
        yield OpenSearchSinkLane(settings, owner, link)


async def look(settings: OpenSearchSink, base_dir: Path) -> None:
    """Raises Millstream errors if the cluster cannot be reached, or rejects the request."""
    async with linked(settings, base_dir, "validate --online: the opensearch sink", HTTP) as link:
        with translated(link):
            async with link.session.get(f"{link.url.rstrip('/')}/", allow_redirects=False) as response:
                if response.status != 200:
                    raise link.refused(response.status, response.headers)
