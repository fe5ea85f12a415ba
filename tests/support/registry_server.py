"""A stand-in for a schema registry, over HTTP on the loopback: the part of Confluent's REST interface that is used.

It is not a registry: it answers as the interface is documented, and checks no compatibility. Above it: tests. Below it:
aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import web

USER, PASSWORD = "reader", "a long secret"
_AUTHORIZATION = "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class RegistryServer:
    """Schemas by id. `away` and `closed` are its faults. After `stop` and `start` it has the same port and schemas."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self._tls = tls
        self._port = 0
        self._runner: web.AppRunner | None = None
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[tuple[str, int], dict[str, Any]] = {}
        self.raw = ""
        """It answers everything with this text."""
        self.away = False
        """It answers 503, as a proxy does in front of a registry that is down."""
        self.closed = False
        """It asks who it is."""
        self.read_only = False
        """Its user may not register schemas."""
        self.frozen: set[str] = set()
        """Subjects with which no new schema is compatible."""
        self.descriptors: dict[str, str] = {}
        """Of Protobuf schemas by their source: this does not compile."""
        self.asked: list[str] = []
        """Paths of the requests that it got."""
        self.heard: Callable[[str, str], object] = lambda request, moment: None
        """Called with each request (`GET /schemas/ids/1`) `before` and `after` it is carried out."""
        self.open_max = 0
        """Requests that it had at a time, at most."""
        self._open = 0

    async def start(self) -> None:
        """Returns when it listens."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """As a kill does: every connection ends."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def register(self, subject: str, schema: Any, kind: str = "AVRO", **more: Any) -> int:
        """Add a schema to a subject, as its newest; its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        number = next((n for n, one in self.schemas.items() if one["schema"] == text), None)
        if number is None:
            number = max(self.schemas, default=0) + 1
            self.schemas[number] = {"schema": text, "schemaType": kind, **more}
        version = self.newest(subject) + 1
        if number not in (found["id"] for (of, _), found in self.versions.items() if of == subject):
            self.versions[subject, version] = {
                "subject": subject,
                "version": version,
                "id": number,
                **self.schemas[number],
            }
        return number

    def newest(self, subject: str) -> int:
        """Number of the newest version of a subject; 0: there is none."""
        return max((version for of, version in self.versions if of == subject), default=0)

    async def answer(self, request: web.Request) -> web.Response:
        self._open += 1
        self.open_max = max(self.open_max, self._open)
        try:
            # Requests that come together are seen together.
            await asyncio.sleep(0.0)
            self.heard(f"{request.method} {request.path}", "before")
            answer = await self._answer(request)
            self.heard(f"{request.method} {request.path}", "after")
            return answer
        finally:
            self._open -= 1

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.raw:
            return web.Response(text=self.raw)
        if self.away:
            return web.Response(status=503, text="<html>no upstream</html>")
        if self.closed and request.headers.get("Authorization") != _AUTHORIZATION:
            return web.json_response({"error_code": 40101, "message": "Unauthorized"}, status=401)
        parts = [unquote(part) for part in request.rel_url.raw_path.strip("/").split("/")]
        if request.method == "POST":
            return await self._posted(request, parts)
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            missing = {"error_code": 40403, "message": "Schema not found"}
        elif parts[:1] != ["subjects"]:
            # Newer registries have more, which clients do without.
            found, missing = None, {"error_code": 404, "message": "HTTP 404 Not Found"}
        else:
            version = self.newest(parts[1]) if parts[3] == "latest" else int(parts[3])
            found = self.versions.get((parts[1], version))
            missing = {"error_code": 40402, "message": "Version not found"}
        if found is not None and request.query.get("format") == "serialized":
            found = {**found, "schema": found.get("serialized", found["schema"])}
        return web.json_response(missing, status=404) if found is None else web.json_response(found)

    async def _posted(self, request: web.Request, parts: list[str]) -> web.Response:
        """A schema to register in a subject, or to look up there."""
        subject, body = parts[1], await request.json()
        text, kind = body["schema"], body.get("schemaType", "AVRO")
        if parts[2:] == ["versions"]:
            if self.read_only:
                return web.json_response({"error_code": 40301, "message": "User is denied operation"}, status=403)
            if subject in self.frozen:
                return web.json_response(
                    {"error_code": 409, "message": "Schema being registered is incompatible"}, status=409
                )
            references = {"references": body["references"]} if body.get("references") else {}
            return web.json_response({"id": self.register(subject, text, kind, **self.compiled(text), **references)})
        for (of, _), found in self.versions.items():
            if of == subject and found["schema"] == text:
                return web.json_response(found)
        return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)

    def compiled(self, text: str) -> dict[str, str]:
        """What a registry makes of a schema beside its text, as tests say it does."""
        return {"serialized": self.descriptors[text]} if text in self.descriptors else {}


def encryption(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """For a server at 127.0.0.1, with its certificate, which is its own authority's."""
    certificate, key = directory / "registry.crt", directory / "registry.key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate


@asynccontextmanager
async def open_registry_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[RegistryServer]:
    server = RegistryServer(tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
