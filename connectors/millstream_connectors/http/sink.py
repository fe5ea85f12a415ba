"""The HTTP sink: records as sequential requests, each with a key that is the same at every attempt.

    frame ─► cut into batches ─► POST, Idempotency-Key ─► 2xx: written
                                                       └► 408 409 425 429 5xx, no answer: retried
                                                       └► anything else: refused

A batch never spans stored frames and is cut at indexes of the stored frame, so that the same records have the same key
after a restart, too. Order is kept: records after a failed batch are not sent.

Above it: the delivery. Below it: aiohttp.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp

from millstream import codes
from millstream.exact_json import parse
from millstream.limits import KIB
from millstream.record import Position
from millstream.spec.connectors import Place
from millstream.spec.problems import Finding
from millstream.spec.references import resolve
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of
from millstream_connectors.http.settings import HttpBatch, HttpSink
from millstream_connectors.shared.json_rows import one_line
from millstream_connectors.shared.requests import requests_of
from millstream_connectors.shared.web.client import (
    CONTROL,
    NOT_A_HEADER_NAME,
    PASSING,
    WebLink,
    body_of,
    check_header,
    linked,
    retry_after_s,
    said,
)
from millstream_connectors.shared.web.settings import HTTP as SCHEMES
from millstream_writer.sink import Guarantee, SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

ANSWER_BYTES_MAX = 64 * KIB
"""Bytes of an answer that are read so that the connection can be reused; after a longer answer it is closed."""
DETAIL_CHARACTERS_MAX = 300

HEADER_BYTES_MAX = 1 * KIB
"""Longest header of a record that is sent as a request header; servers accept about 8 KiB in total."""
HEADERS_MAX = 16
"""Maximum number of a record's headers that are sent."""

_BYTES = "application/octet-stream"
_JSON = "application/json"
_LINES = "application/x-ndjson"
_TRACE = frozenset(("traceparent", "tracestate"))
"""Headers with a meaning of their own in a request."""
_UNPRINTABLE = re.compile(r"[^ -~]")
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters that stay unchanged in an id that has to be percent-encoded to fit into a header."""

UNREACHABLE = "target cannot be reached"
NO_ANSWER = "target did not answer in time"
WAITING = "waits for the preceding record"
LINE_BREAK = "value has a line break and is not JSON"


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Records of one request."""

    rows: Sequence[int]
    body: bytes
    key: str
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the record, if there is only one."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a request failed."""

    reason: str
    retryable: bool
    detail: str = ""
    delay_s: float = 0.0
    everything: bool = False
    """Whether the target as a whole is away: the records that would have followed count as tried, too."""


class _Line(NamedTuple):
    """A record in a request with several."""

    row: int
    text: bytes


def batches_of(
    item: SinkFrame, limits: HttpBatch, *, envelope: bool = False
) -> tuple[list[RequestBatch], list[SinkFailure]]:
    """The requests for a frame's records, in order, and the records that cannot be sent. Pure.

    `envelope`: the values are envelopes, which contain the headers of the records.
    """
    values, indexes = item.frame.values(), item.indexes()
    ids = [quote(name, safe=_PRINTABLE) if _UNPRINTABLE.search(name) else name for name in item.record_ids()]
    if limits.max_records == 1:
        if envelope:
            return [RequestBatch((row,), value, ids[row], _JSON) for row, value in enumerate(values)], []
        headers = item.frame.headers()
        return [
            RequestBatch((row,), value, ids[row], _BYTES, request_headers(headers[row]))
            for row, value in enumerate(values)
        ], []
    lines: list[_Line] = []
    failures: list[SinkFailure] = []
    for row, value in enumerate(values):
        if b"\n" in value or b"\r" in value:
            try:
                parse(value)
            except ValueError as error:
                failures.append(SinkFailure(row, LINE_BREAK, retryable=False, detail=str(error)))
                continue
        lines.append(_Line(row, one_line(value) + b"\n"))

    def batch(part: Sequence[_Line]) -> RequestBatch:
        first, last = part[0].row, part[-1].row
        key = ids[first] if len(part) == 1 else f"{ids[first]}..{ids[last]}"
        return RequestBatch([line.row for line in part], b"".join(line.text for line in part), key, _LINES)

    groups = groupby(lines, key=lambda line: indexes[line.row] // limits.max_records)
    return [batch(part) for _, group in groups for part in requests_of(group, _size_of, limits.max_bytes)], failures


def _size_of(line: _Line) -> int:
    return len(line.text)


def request_headers(headers: Mapping[str, bytes]) -> dict[str, str]:
    """A record's headers as request headers, with the prefix `x-` if they do not have it.

    The HTTP source reads them back. Omitted are headers that a request cannot contain, long ones, and those beyond the
    maximum number.
    """
    sent: dict[str, str] = {}
    for own_name, value in headers.items():
        name = own_name.lower()
        if name in _TRACE or NOT_A_HEADER_NAME.search(name) is not None or len(value) > HEADER_BYTES_MAX:
            continue
        text = value.decode(errors="replace")
        if CONTROL.search(text) is None and len(sent) < HEADERS_MAX:
            sent[name if name.startswith("x-") else f"x-{name}"] = text
    return sent


class HttpSinkLane(UnkeptLane):
    """The session of one lane. One request at a time."""

    guarantee = Guarantee.EXACTLY_ONCE_IDEMPOTENT

    def __init__(self, link: WebLink, spec: HttpSink, *, envelope: bool) -> None:
        self._link = link
        self._spec = spec
        self._envelope = envelope
        self._own_type = any(name.lower() == "content-type" for name in spec.headers)
        self._own_names = {name.lower() for name in (*spec.headers, spec.idempotency_header)}

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        results: list[list[SinkFailure]] = []
        failed: _Failed | None = None
        for item in frames:
            batches, failures = batches_of(item, self._spec.batch, envelope=self._envelope)
            for batch in batches:
                if failed is None:
                    failed = await self._send(batch, item.frame.traceparent)
                    if failed is not None:
                        failures.extend(_failures(batch, failed))
                        if not failed.retryable:
                            failed = None
                elif failed.everything:
                    failures.extend(_failures(batch, failed))
                else:
                    failures.extend(SinkFailure(row, WAITING, retryable=True, attempted=False) for row in batch.rows)
            results.append(failures)
        return WriteResult(results if any(results) else ())

    async def _send(self, batch: RequestBatch, traceparent: str) -> _Failed | None:
        headers = {name: text for name, text in batch.headers.items() if name not in self._own_names}
        headers[self._spec.idempotency_header] = batch.key
        if not self._own_type:
            headers["Content-Type"] = batch.content_type
        if traceparent:
            headers["traceparent"] = traceparent
        try:
            async with self._link.session.request(
                self._spec.method, self._link.url, data=body_of(batch.body), headers=headers, allow_redirects=False
            ) as response:
                return await _judge(response, self._link)
        except TimeoutError:
            return _Failed(NO_ANSWER, retryable=True, detail=f"within {self._spec.timeout_s:g} s")
        except aiohttp.ClientError as error:
            return _Failed(UNREACHABLE, retryable=True, detail=said(error), everything=True)


async def _judge(response: aiohttp.ClientResponse, link: WebLink) -> _Failed | None:
    """The meaning of a target's answer. Once the status has arrived, a truncated body does not matter."""
    status = response.status
    try:
        text = await response.content.read(ANSWER_BYTES_MAX)
    except aiohttp.ClientError:
        text = b""
    if not response.content.at_eof():
        response.close()
    if 200 <= status < 300:
        return None
    return _Failed(
        f"HTTP status {status}",
        retryable=status >= 500 or status in PASSING,
        # A target may repeat what it was sent, such as a token that it does not know.
        detail=link.shown(text.decode(errors="replace"))[:DETAIL_CHARACTERS_MAX],
        delay_s=retry_after_s(response.headers, datetime.now(UTC)),
    )


def _failures(batch: RequestBatch, failed: _Failed) -> list[SinkFailure]:
    return [
        SinkFailure(row, failed.reason, retryable=failed.retryable, delay_s=failed.delay_s, detail=failed.detail)
        for row in batch.rows
    ]


@asynccontextmanager
async def open_http_sink(
    spec: HttpSink, base_dir: Path, where: str, *, envelope: bool = False
) -> AsyncIterator[SinkLane]:
    """A session for one lane. Sends nothing yet. Resolves the references in the spec.

    Raises `UserError` if a value is not available, or cannot be sent.
    """
    whose = f"{where}: the http sink"
    check_header(spec.idempotency_header, "", whose)
    async with linked(spec, base_dir, whose, SCHEMES) as link:
        yield HttpSinkLane(link, spec, envelope=envelope)


async def look(settings: HttpSink, place: Place) -> Sequence[Finding]:
    """Why no connection, with TLS if the URL requires it, can be made.

    Sends no request, because any could have an effect there. The URL may contain a secret, so only host and port are
    shown.
    """
    parts = urlsplit(resolve(settings.url, place.base_dir, "the url of the http sink"))
    is_tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
    tls = context_of(settings.tls or ServerTls(), place.base_dir, "the http sink") if is_tls else None
    path = (*place.path, "url")
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=tls)
    except ssl.SSLError as error:
        what = f"no encrypted connection to {host}:{port}: {error}"
        return [Finding(codes.TARGET_REFUSES, path, what, "a trusted certificate")]
    except OSError as error:
        what = f"no connection to {host}:{port}: {error}"
        return [Finding(codes.TARGET_AWAY, path, what, "a receiver that listens there")]
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ()
