"""JSON values in Confluent's wire format, a batch at a time: the reverse of `decoding`.

    JSON ─► fits the schema? ─► 0 | schema id, 4 bytes | value
                └─ no: the reason

Above it: the lanes of sinks. Below it: the registry and the encodings. The schema is chosen when the first value
arrives and does not change until the lane is opened again. An empty value (a tombstone of Kafka's) stays empty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.durable import step
from millstream.errors import UserError
from millstream.importing import importing
from millstream.spec.formats import SinkFormat
from millstream.spec.references import resolve
from millstream_connectors.shared.formats.confluent import TYPES, header
from millstream_connectors.shared.formats.registry import RegistryClient, Schema, open_registry

Encode = Callable[[bytes], bytes]
"""Converts JSON to the bytes of a value. Raises `ValueError`."""


class Encoder:
    """The encoder of one lane. Created by `open_encoder`."""

    def __init__(
        self, settings: SinkFormat, subject: str, text: str | None, registry: RegistryClient, where: str
    ) -> None:
        self._settings = settings
        self._subject = subject
        self._text = text
        """Text of the schema, if it is configured."""
        self._registry = registry
        self._where = where
        self._chosen: tuple[int, bytes, Encode] | None = None
        """The schema's id, the bytes before each value, and the function that encodes a value."""

    async def encode(self, values: Sequence[bytes]) -> list[bytes | ValueError]:
        """For each value its encoding, or the reason why it has none. The call may be repeated.

        Raises what requests to the registry raise, and `UserError` if there is no schema to write with. In both cases
        nothing was encoded.
        """
        if self._chosen is None:
            self._chosen = await self._choose()
        schema_id, head, encode = self._chosen
        made: list[bytes | ValueError] = []
        for value in values:
            try:
                made.append(head + encode(value) if value else value)
            except ValueError as error:
                made.append(ValueError(f"schema {schema_id} of {self._subject}: {error}"))
        return made

    async def check(self) -> None:
        """Find the schema now, without registering one. Raises as `encode` does."""
        if self._settings.auto_register:
            # The schema need not exist yet.
            await self._registry.latest(self._subject)
        else:
            await self._choose()

    async def _choose(self) -> tuple[int, bytes, Encode]:
        schema_id = await self._find()
        schema = await self._registry.schema(schema_id)
        wanted = TYPES[self._settings.encoding]
        try:
            if schema is None or schema.type != wanted:
                missing = "is not known to the registry"
                raise ValueError(missing if schema is None else f"is of type {schema.type}, and `format` says {wanted}")
            return schema_id, header(schema_id), await importing(self._made, schema)
        except ValueError as error:
            raise UserError(
                codes.TARGET_UNFIT, f"{self._where}: `format`: schema {schema_id} of {self._subject!r} {error}"
            ) from error

    async def _find(self) -> int:
        """Id of the schema to write with. Cases:

        1. No schema is configured: the newest of the subject.
        2. A schema is configured, and may be registered: its id, new or not.
        3. A schema is configured, and may not be registered: its id, if the subject has it.
        """
        settings, subject, url = self._settings, self._subject, self._settings.registry.url
        if self._text is None:
            found = await self._registry.latest(subject)
            missing = f"the schema registry {url} has no subject {subject!r}. Register a schema there, or set one"
            remedy = f"{missing}: `schema` with `autoRegister: true`"
        elif settings.auto_register:
            with step("format.register"):
                return await self._registry.register(subject, TYPES[settings.encoding], self._text)
        else:
            found = await self._registry.registered(subject, TYPES[settings.encoding], self._text)
            missing = f"the schema registry {url} does not have this `schema` in subject {subject!r}"
            remedy = f"{missing}. Register it there, or set `autoRegister: true`"
        if found is None:
            raise UserError(codes.TARGET_UNFIT, f"{self._where}: `format`: {remedy}")
        return found

    def _made(self, schema: Schema) -> Encode:
        if self._settings.encoding == "json":
            from millstream_connectors.shared.formats import json_values

            return json_values.encoder(schema)
        if self._settings.encoding == "protobuf":
            from millstream_connectors.shared.formats import protobuf

            return protobuf.encoder(protobuf.parsed(schema), self._settings.message)
        from millstream_connectors.shared.formats import avro, avro_writing

        return avro_writing.encoder(avro.parsed(schema))


@asynccontextmanager
async def open_encoder(settings: SinkFormat, subject: str, base_dir: Path, where: str) -> AsyncIterator[Encoder]:
    """`subject`: used if `settings` names none. Raises as `open_registry` does."""
    text = None if settings.schema_text is None else resolve(settings.schema_text, base_dir, f"{where}: format.schema")
    async with open_registry(settings.registry, base_dir, where) as registry:
        yield Encoder(settings, settings.subject or subject, text, registry, where)
