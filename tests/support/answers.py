"""Waits until a NATS server has taken what a client has sent."""

from __future__ import annotations

from nats.aio.client import Client

_FLUSHES = 3
"""The client library sends the ping of a flush ahead of what is in its queue: the first answer proves nothing."""


async def taken(client: Client) -> None:
    """Return when the server has processed every subscription and message of `client` up to now."""
    for _ in range(_FLUSHES):
        await client.flush()
