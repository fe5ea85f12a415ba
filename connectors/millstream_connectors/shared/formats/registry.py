"""A lane's access to a schema registry: schemas by their ids, which never change, and ids by their subjects.

Above it: decoders and encoders. Below it: aiohttp. Every failure becomes a Millstream error, by who must act. A
registry that does not answer raises `RetryLaterError`, so the lane waits for it.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream.json_parser import parse_json
from millstream.limits import REGISTRY_ANSWER_BYTES_MAX, REGISTRY_REFERENCES_MAX, REGISTRY_REQUESTS_MAX
from millstream.spec.formats import SchemaRegistry
from millstream.spec.references import resolve
from millstream.spec.tls import ServerTls
from millstream.wire.bodies import BoundedResponse, TooLargeError, body_within
from millstream.wire.client_tls import context_of

PROTOBUF = "PROTOBUF"
"""The type of schemas that have two texts: the source and the compiled descriptor."""
_SERIALIZED = "?format=serialized"
_REFUSED = (401, 403)
_CONFLICT = (409, 422)
_PASSING = (408, 425, 429)
_UNKNOWN = 404
_CONTENT = "application/vnd.schemaregistry.v1+json"
_MESSAGE_SHOWN = 500


class SchemaReference(NamedTuple):
    """A schema that another one refers to."""

    name: str
    """The name in the reference."""
    text: str


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema, with those that it refers to."""

    type: str
    """`AVRO`, `JSON` or `PROTOBUF`, as the registry names it."""
    text: str
    """Descriptor of a Protobuf schema, in base64."""
    references: tuple[SchemaReference, ...] = ()
    """The schemas that it refers to, each after those that it refers to itself."""


class RegistryClient:
    """A client of one registry. Created by `open_registry`."""

    def __init__(self, settings: SchemaRegistry, session: ClientSession, where: str) -> None:
        self._settings = settings
        self._session = session
        self._where = where

    async def schema(self, schema_id: int) -> Schema | None:
        """The schema with this id; None if the registry has none.

        Raises `RetryLaterError` if the registry does not answer, and `UserError` if it refuses.
        """
        path = f"/schemas/ids/{schema_id}"
        found = await self._ask(path)
        if found is None:
            return None
        kind, form = str(found.get("schemaType") or "AVRO"), ""
        if kind == PROTOBUF:
            # Nothing here reads Protobuf source, so the schema is requested again as a descriptor.
            form = _SERIALIZED
            found = await self._ask(path + form) or found
        referred: dict[tuple[str, int], SchemaReference] = {}
        await self._refer(found, form, referred)
        return Schema(kind, self._text(found), tuple(referred.values()))

    async def latest(self, subject: str) -> int | None:
        """Id of the newest schema of a subject; None if there is no such subject. Raises as `schema` does."""
        found = await self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest")
        return None if found is None else self._id(found)

    async def registered(self, subject: str, kind: str, text: str) -> int | None:
        """Id of this schema in a subject; None if it is not registered there. Raises as `schema` does."""
        found = await self._ask(f"/subjects/{quote(subject, safe='')}", {"schemaType": kind, "schema": text})
        return None if found is None else self._id(found)

    async def register(self, subject: str, kind: str, text: str) -> int:
        """Register this schema in a subject, unless it is already there. Returns its id.

        Raises as `schema` does, and `UserError` if the registry rejects the schema.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        found = await self._ask(path, {"schemaType": kind, "schema": text})
        if found is None:
            raise self._strange(f"it answers {path} with status {_UNKNOWN}")
        return self._id(found)

    async def _refer(self, found: dict[str, object], form: str, texts: dict[tuple[str, int], SchemaReference]) -> None:
        """Add the schemas that a schema refers to, in an order in which each can be parsed."""
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
            referred = await self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}{form}")
            if referred is None:
                raise self._strange(f"a schema refers to version {version} of {subject!r}, which does not exist")
            # Reserved first, so that a cycle of references ends.
            texts[subject, version] = SchemaReference("", "")
            await self._refer(referred, form, texts)
            del texts[subject, version]
            texts[subject, version] = SchemaReference(str(reference.get("name") or subject), self._text(referred))

    async def _ask(self, path: str, body: Mapping[str, str] | None = None) -> dict[str, object] | None:
        """The answer; None if the requested item does not exist. `body` is sent as JSON."""
        method = "GET" if body is None else "POST"
        headers = {} if body is None else {"Content-Type": _CONTENT}
        url = self._settings.url + path
        try:
            async with self._session.request(method, url, json=body, headers=headers, allow_redirects=False) as answer:
                status, given = answer.status, await body_within(answer, REGISTRY_ANSWER_BYTES_MAX)
        except TooLargeError as error:
            raise self._strange(str(error)) from error
        except (ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            what = str(error) or type(error).__name__
            raise self._away(f"does not answer: {what}") from error
        if status in _REFUSED:
            raise UserError(
                codes.TARGET_REFUSES,
                f"{self._where}: the schema registry {self._settings.url} refuses {path} with status {status}: check "
                "`user` and `password` of `registry`, and the permissions of this user",
            )
        if status >= 500 or status in _PASSING:
            raise self._away(f"answers {path} with status {status}")
        try:
            found = parse_json(given)
        except ValueError:
            found = None
        if status == _UNKNOWN and isinstance(found, dict) and "error_code" in found:
            return None
        if status in _CONFLICT and isinstance(found, dict) and "error_code" in found:
            raise UserError(
                codes.TARGET_UNFIT,
                f"{self._where}: the schema registry {self._settings.url} rejects the schema ({path}): "
                f"{str(found.get('message'))[:_MESSAGE_SHOWN]}. Check `schema` of `format`, and the compatibility that "
                "is set for the subject",
            )
        if status != 200 or not isinstance(found, dict):
            raise self._strange(f"it answers {path} with status {status}, unlike a schema registry")
        return found

    def _id(self, found: dict[str, object]) -> int:
        number = found.get("id")
        if not isinstance(number, int) or not 0 <= number < 2**32:
            raise self._strange("an answer has no `id` of a schema")
        return number

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
            codes.TARGET_UNFIT, f"{self._where}: the schema registry {self._settings.url}: {what}. Check `registry.url`"
        )


@asynccontextmanager
async def open_registry(settings: SchemaRegistry, base_dir: Path, where: str) -> AsyncIterator[RegistryClient]:
    """Sends nothing yet. Raises `UserError` for credentials and certificates that are not available."""
    headers: dict[str, str] = {}
    if settings.user is not None:
        user = resolve(settings.user, base_dir, f"{where}: registry.user")
        password = resolve(settings.password, base_dir, f"{where}: registry.password")
        headers["Authorization"] = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    tls = context_of(settings.tls or ServerTls(), base_dir, where) if settings.encrypted else True
    async with ClientSession(
        connector=TCPConnector(ssl=tls, limit=REGISTRY_REQUESTS_MAX),
        headers=headers,
        timeout=ClientTimeout(total=settings.timeout_s),
        response_class=BoundedResponse,
    ) as session:
        yield RegistryClient(settings, session, where)
