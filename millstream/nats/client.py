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
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.aio.transport import TcpTransport
    from nats.protocol import parser
finally:
    if _hidden:
        del sys.modules[_LIBRARY]

__all__ = ["PING", "Client", "Msg", "Subscription", "TcpTransport", "nats_errors", "parser"]
