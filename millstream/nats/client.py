"""The parts of `nats-py` that are used here, imported without its web sockets.

Above it: code that speaks NATS. `nats-py` imports an HTTP library for connections over web sockets, where that is
installed; that takes as long as all the rest of it, in every process that is started or started again, and no
connection here is one. Code that needs the HTTP library itself imports it as usual.
"""

from __future__ import annotations

import sys

_LIBRARY = "aiohttp"

_hidden = _LIBRARY not in sys.modules
if _hidden:
    # As if it were not installed, for the next lines.
    sys.modules[_LIBRARY] = None  # type: ignore[assignment]
try:
    from nats import errors as nats_errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.aio.transport import TcpTransport
finally:
    if _hidden:
        del sys.modules[_LIBRARY]

__all__ = ["Client", "Msg", "Subscription", "TcpTransport", "nats_errors"]
