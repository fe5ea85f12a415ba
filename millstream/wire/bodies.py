"""Bodies of answers, which may be compressed and have a limited size.

An answer of a few kilobytes may stand for gigabytes. aiohttp decompresses a body in parts, as it is read, so its size
is known before it is in memory. Above it: every session of aiohttp. Below it: aiohttp.
"""

from __future__ import annotations

from aiohttp import ClientResponse

from millstream.limits import KIB, WEB_ANSWER_BYTES_MAX

_PART_BYTES = 64 * KIB


class TooLargeError(ValueError):
    """A server's answer is larger than the limit."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"an answer has more than {bytes_max} bytes, the limit")
        self.bytes_max = bytes_max


async def body_within(response: ClientResponse, bytes_max: int) -> bytes:
    """The whole body, decompressed. Raises `TooLargeError`; then the connection is closed."""
    body = bytearray()
    async for part in response.content.iter_chunked(_PART_BYTES):
        body += part
        if len(body) > bytes_max:
            response.close()
            raise TooLargeError(bytes_max)
    return bytes(body)


class BoundedResponse(ClientResponse):
    """An answer of which `read`, `text` and `json` read at most `WEB_ANSWER_BYTES_MAX` bytes, or raise `TooLargeError`.

    The class of the answers of every session.
    """

    async def read(self) -> bytes:
        if self._body is None:
            self._body = await body_within(self, WEB_ANSWER_BYTES_MAX)
        return await super().read()
