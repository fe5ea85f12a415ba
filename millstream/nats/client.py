"""The parts of `nats-py` that are used here, imported without its support for WebSockets.

Above it: code that speaks NATS. `nats-py` imports an HTTP library for connections over WebSockets, if it is installed.
That import takes as long as the rest of `nats-py`, in every process, and no connection here uses WebSockets. Code that
needs the HTTP library itself imports it as usual.
"""

from __future__ import annotations

import sys

_LIBRARY = "aiohttp"

_hidden = _LIBRARY not in sys.modules
if _hidden:
    # The next lines find the library not installed.
    sys.modules[_LIBRARY] = None  # type: ignore[assignment]
try:
    from nats import errors as nats_errors
    from nats.aio.client import PING_PROTO as PING
    from nats.aio.client import Client as _Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.aio.transport import TcpTransport
    from nats.protocol import parser
finally:
    if _hidden:
        del sys.modules[_LIBRARY]


class Client(_Client):
    """The library's client, which keeps the bytes of headers that are not UTF-8: as lone surrogates, which
    `header_bytes` turns back. The library replaces them, so that different values become the same."""

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        try:
            raw.decode()
        except UnicodeDecodeError:
            found = _Client._parse_header_lines(raw.decode("latin-1").encode())
            return {name: text.encode("latin-1").decode(errors="surrogateescape") for name, text in found.items()}
        return _Client._parse_header_lines(raw)


def header_bytes(text: str) -> bytes:
    """The bytes of a header as they were sent."""
    return text.encode(errors="surrogateescape")


__all__ = ["PING", "Client", "Msg", "Subscription", "TcpTransport", "header_bytes", "nats_errors", "parser"]
