"""Whether the receiver of an HTTP sink listens. Sends no request, because any request could have an effect there.

Above it: `validate --online`. Below it: the network.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from millstream import codes
from millstream.codes.code import Code
from millstream.spec.references import resolve
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of
from millstream_connectors.http.settings import HttpSink


async def unreachable(settings: HttpSink, base_dir: Path) -> tuple[Code, str, str] | None:
    """Why no connection, with TLS if the URL requires it, can be made, and what is expected; None if it can.

    The URL may contain a secret, so only host and port are shown.
    """
    parts = urlsplit(resolve(settings.url, base_dir, "the url of the http sink"))
    is_tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
    tls = context_of(settings.tls or ServerTls(), base_dir, "the http sink") if is_tls else None
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=tls)
    except ssl.SSLError as error:
        return codes.TARGET_REFUSES, f"no encrypted connection to {host}:{port}: {error}", "a trusted certificate"
    except OSError as error:
        return codes.TARGET_AWAY, f"no connection to {host}:{port}: {error}", "a receiver that listens there"
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None
