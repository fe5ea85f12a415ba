"""A stand-in for a server that gives tokens to clients (OAuth 2, client credentials), over HTTP on the loopback.

Its tokens are not signed: a broker of Kafka takes them as it is delivered. Above it: tests. Below it: http.server.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote_plus

CLIENT, SECRET = "orders-pipeline", "a long secret of a client"
_AUTHORIZATIONS = [
    "Basic " + b64encode(f"{CLIENT}:{secret}".encode()).decode()
    # librdkafka sends it as it is, and not as OAuth 2 demands.
    for secret in (SECRET, quote_plus(SECRET))
]


class TokenEndpoint:
    """Gives tokens. `answer`, if set, is what it answers instead."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str) -> None:
        self.url = f"{scheme}://127.0.0.1:{server.server_port}/token"
        self.answer: tuple[int, str] | None = None
        self.issued_s: int | None = None
        """The Unix time at which its tokens say that they were issued; None for the time of the request."""
        self.lifetime_s = 3600
        """Of its tokens."""
        self.scopes: list[str] = []
        """Of the requests that got a token."""

    def reply(self, authorization: str | None, body: str) -> tuple[int, str]:
        """Status and body for a request."""
        asked = {name: values[0] for name, values in parse_qs(body).items()}
        if self.answer is not None:
            return self.answer
        if authorization not in _AUTHORIZATIONS or asked.get("grant_type") != "client_credentials":
            # Some servers repeat what they got.
            return 401, json.dumps({"error": "invalid_client", "error_description": f"{authorization} {body}"})
        self.scopes.append(asked.get("scope", ""))
        now_s = int(time.time()) if self.issued_s is None else self.issued_s
        claims = {"sub": CLIENT, "iat": now_s, "exp": now_s + self.lifetime_s, "scope": asked.get("scope", "")}
        parts = ({"alg": "none"}, claims)
        token = ".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."
        return 200, json.dumps({"access_token": token, "token_type": "bearer", "expires_in": self.lifetime_s})


@contextmanager
def open_token_endpoint(tls: ssl.SSLContext | None = None) -> Iterator[TokenEndpoint]:
    """A server of one's own, ended when the context ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            status, text = endpoint.reply(self.headers.get("Authorization"), body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            # Without it, only the end of the connection would tell the end of the answer.
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        endpoint = TokenEndpoint(server, "http" if tls is None else "https")
        thread = threading.Thread(target=server.serve_forever, name="token-endpoint")
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
