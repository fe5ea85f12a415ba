"""Reads the messages of a stream page by page, without a consumer.

Above it: the ledger and the watermark store. Below it: the connection.

    after 0 ──► page ──► after 912 ──► page ──► ... ──► nothing follows

The server ends every page itself and reports how many messages follow. So a reader relies only on what it received, at
any speed, and never mistakes a silent broker for the end of the stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from millstream import limits
from millstream.nats.client import Msg
from millstream.nats.connection import API_TIMEOUT_S, AnswerLostError, BrokerConnection

PAGE_MESSAGES = 1000
"""Number of messages in one request."""


class PageMessage(NamedTuple):
    """A message of a stream."""

    sequence: int
    subject: str
    time: str
    """When it was stored, by the server's clock, in the format of RFC 3339."""
    data: bytes


async def read_page(
    connection: BrokerConnection,
    stream: str,
    subject: str,
    after: int,
    take: Callable[[PageMessage], None],
    *,
    timeout_s: float = API_TIMEOUT_S,
) -> int:
    """Pass the messages of `subject` after sequence `after` to `take`, in order. Returns how many messages follow.

    Raises `AnswerLostError` if the next message, or the end of the page, does not arrive within `timeout_s`. The
    messages passed until then are valid, and the next page continues after them. If the server that answers is not the
    stream's leader, it knows only the messages that it has received so far.
    """
    client = connection.client
    answers: asyncio.Queue[Msg | None] = asyncio.Queue()
    inbox = client.new_inbox()
    lost = connection.on_loss(lambda: answers.put_nowait(None))
    subscription = await client.subscribe(inbox, cb=answers.put)
    try:
        request = {
            "seq": after + 1,
            "batch": PAGE_MESSAGES,
            "max_bytes": limits.FRAME_BYTES_MAX,
            "next_by_subj": subject,
        }
        await connection.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), reply=inbox)
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await answers.get()
            except TimeoutError as error:
                raise AnswerLostError(f"no answer in {timeout_s:g} s") from error
            if answer is None:
                raise AnswerLostError("the connection was lost")
            headers = answer.headers or {}
            if "Status" in headers:
                return _left(headers)
            take(_message(headers, answer.data))
    finally:
        lost()
        if not client.is_closed:
            await subscription.unsubscribe()


async def read_next(
    connection: BrokerConnection, stream: str, subject: str, after: int, *, timeout_s: float = API_TIMEOUT_S
) -> tuple[PageMessage, int] | None:
    """The first message of `subject` after sequence `after`, and how many follow it; None if there is none.

    A page of one message that needs no subscription: for callers that ask often and seldom find more.
    Raises `AnswerLostError`.
    """
    request = {"seq": after + 1, "batch": 1, "next_by_subj": subject}
    # The end of the page arrives as a second answer, for which this does not wait.
    answer = await connection.request(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), timeout_s=timeout_s)
    headers = answer.headers or {}
    if "Status" in headers:
        _left(headers)
        return None
    return _message(headers, answer.data), int(headers["Nats-Num-Pending"])


def _message(headers: Mapping[str, str], data: bytes) -> PageMessage:
    return PageMessage(int(headers["Nats-Sequence"]), headers["Nats-Subject"], headers["Nats-Time-Stamp"], data)


def _left(headers: Mapping[str, str]) -> int:
    """Number of messages after the end of a page."""
    status = headers["Status"]
    if status == "404":
        return 0
    if status != "204":
        raise AnswerLostError(f"a direct get was answered with status {status}")
    return int(headers.get("Nats-Num-Pending", "0"))
