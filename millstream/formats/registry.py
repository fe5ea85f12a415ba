"""A lane's access to a schema registry: schemas by their ids, which never change.

Above it: decoders. Below it: aiohttp. Every failure becomes an error of ours by who must act. A registry that does not
answer is `RetryLaterError`, so the lane waits for it.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream.limits import REGISTRY_ANSWER_BYTES_MAX, REGISTRY_REFERENCES_MAX
from millstream.spec.formats import SchemaRegistry
from millstream.spec.references import resolve
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of

_REFUSED = (401, 403)
_PASSING = (408, 425, 429)
_UNKNOWN = 404


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema, with those that it refers to."""

    type: str
    """As the registry names it: `AVRO`, `JSON`, `PROTOBUF`."""
    text: str
    references: tuple[str, ...]
    """Texts of the schemas that it refers to, each behind those that it refers to itself."""


class Registry:
    """Asks one registry. Made by `open_registry`."""

    def __init__(self, settings: SchemaRegistry, session: ClientSession, where: str) -> None:
        self._settings = settings
        self._session = session
        self._where = where

    async def schema(self, schema_id: int) -> Schema | None:
        """The schema with this id; None: the registry has none.

        Raises `RetryLaterError` if the registry does not answer, and `UserError` if it refuses.
        """
        found = await self._ask(f"/schemas/ids/{schema_id}")
        if found is None:
            return None
        texts: dict[tuple[str, int], str] = {}
        await self._refer(found, texts)
        return Schema(str(found.get("schemaType") or "AVRO"), self._text(found), tuple(texts.values()))

    async def _refer(self, found: dict[str, object], texts: dict[tuple[str, int], str]) -> None:
        """Add what a schema refers to, in an order in which each can be parsed."""
        references = found.get("references") or []
        if not isinstance(references, list):
            raise self._strange("`references` is not a list")
        for reference in references:
            try:
                subject, version = str(reference["subject"]), int(reference["version"])
            except (TypeError, KeyError, ValueError):
                raise self._strange("a reference has no `subject` and `version`") from None
            if (subject, version) in texts:
                continue
            if len(texts) >= REGISTRY_REFERENCES_MAX:
                raise self._strange(f"a schema refers to more than {REGISTRY_REFERENCES_MAX} others")
            referred = await self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}")
            if referred is None:
                raise self._strange(f"a schema refers to version {version} of {subject!r}, which does not exist")
            # Reserved first: schemas that refer to each other end here.
            texts[subject, version] = ""
            await self._refer(referred, texts)
            del texts[subject, version]
            texts[subject, version] = self._text(referred)

    async def _ask(self, path: str) -> dict[str, object] | None:
        try:
            async with self._session.get(self._settings.url + path, allow_redirects=False) as answer:
                status, body = answer.status, b""
                async for part in answer.content.iter_chunked(1 << 16):
                    body += part
                    if len(body) > REGISTRY_ANSWER_BYTES_MAX:
                        raise self._strange(f"an answer has more than {REGISTRY_ANSWER_BYTES_MAX} bytes")
        except (ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            what = str(error) or type(error).__name__
            raise self._away(f"does not answer: {what}") from error
        if status in _REFUSED:
            raise UserError(
                codes.TARGET_REFUSES,
                f"{self._where}: the schema registry {self._settings.url} refuses {path} with status {status}: see "
                "`user` and `password` of `registry`, and the rights of this user",
            )
        if status >= 500 or status in _PASSING:
            raise self._away(f"answers {path} with status {status}")
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if status == _UNKNOWN and isinstance(found, dict) and "error_code" in found:
            return None
        if status != 200 or not isinstance(found, dict):
            raise self._strange(f"it answers {path} with status {status}, and not as a schema registry does")
        return found

    def _text(self, found: dict[str, object]) -> str:
        text = found.get("schema")
        if not isinstance(text, str):
            raise self._strange("an answer has no `schema`")
        return text

    def _away(self, what: str) -> RetryLaterError:
        return RetryLaterError(
            codes.TARGET_AWAY, f"{self._where}: the schema registry {self._settings.url} {what}; nothing was lost"
        )

    def _strange(self, what: str) -> UserError:
        return UserError(
            codes.TARGET_UNFIT, f"{self._where}: the schema registry {self._settings.url}: {what}. See `registry.url`"
        )


@asynccontextmanager
async def open_registry(settings: SchemaRegistry, base_dir: Path, where: str) -> AsyncIterator[Registry]:
    """Nothing is asked yet. Raises `UserError` for credentials and certificates that cannot be looked up."""
    headers: dict[str, str] = {}
    if settings.user is not None:
        user = resolve(settings.user, base_dir, f"{where}: registry.user")
        password = resolve(settings.password, base_dir, f"{where}: registry.password")
        headers["Authorization"] = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    tls = context_of(settings.tls or ServerTls(), base_dir, where) if settings.encrypted else None

    connector = TCPConnector(ssl=tls if tls is not None else True, limit=1)
    timeout = ClientTimeout(total=settings.timeout_s)
    async with ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        yield Registry(settings, session, where)
