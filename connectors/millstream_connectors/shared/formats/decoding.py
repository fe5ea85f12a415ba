"""Values in Confluent's wire format, a batch at a time.

    0 | schema id, 4 bytes | value   ─► schema, asked for once ─► JSON

Above it: source lanes. Below it: the registry and the encodings. A value that cannot be decoded is returned with the
reason. An empty value (a tombstone of Kafka's) stays empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.clock import Clock
from millstream.errors import UserError
from millstream.extract import shown
from millstream.importing import importing
from millstream.limits import RECORD_BYTES_MAX, REGISTRY_REQUESTS_MAX, REGISTRY_SCHEMAS_MAX, REGISTRY_UNKNOWN_S
from millstream.spec.formats import Format
from millstream_connectors.shared.formats.confluent import HEADER_BYTES, TYPES, id_of
from millstream_connectors.shared.formats.json_values import checked
from millstream_connectors.shared.formats.registry import RegistryClient, Schema, open_registry

Decode = Callable[[bytes], bytes]
"""Converts the bytes of a value to JSON. Raises `ValueError`."""


class Decoder:
    """The decoder of one lane. Created by `open_decoder`."""

    def __init__(self, settings: Format, registry: RegistryClient, clock: Clock, where: str) -> None:
        self._settings = settings
        self._registry = registry
        self._clock = clock
        self._where = where
        self._known: dict[int, Decode] = {}
        self._unusable: dict[int, tuple[str, float]] = {}
        """By schema id: why it cannot be used, and until when the registry is not asked again."""
        self._reader: Any = None
        """The parsed reader schema, if one is configured and has been fetched."""

    async def decode(self, values: Sequence[bytes]) -> list[bytes | ValueError]:
        """For each value its JSON, or the reason why it has none. The call may be repeated.

        Raises what `RegistryClient.schema` raises. In that case nothing was decoded.
        """
        await self._learn_all({found for value in values if (found := id_of(value)) is not None})
        return [self._decoded(value) for value in values]

    async def check(self) -> None:
        """Ask the registry for the reader schema, or for any schema if there is none. Raises as `decode` does."""
        await self._learn_reader()
        await self._registry.schema(self._settings.reader_schema or 1)

    async def _learn_all(self, schema_ids: set[int]) -> None:
        """Load each schema into one of the two maps, for the calls that follow. Missing ones are fetched
        concurrently."""
        now_s = self._clock.monotonic_s()
        wanted = [
            schema_id
            for schema_id in sorted(schema_ids)
            if schema_id not in self._known and self._unusable.get(schema_id, ("", now_s))[1] <= now_s
        ]
        if not wanted:
            return
        await self._learn_reader()
        for start in range(0, len(wanted), REGISTRY_REQUESTS_MAX):
            # A batch of garbage may name thousands, so the number of concurrent requests is limited.
            part = wanted[start : start + REGISTRY_REQUESTS_MAX]
            try:
                async with asyncio.TaskGroup() as asking:
                    tasks = [asking.create_task(self._registry.schema(schema_id)) for schema_id in part]
            except ExceptionGroup as errors:
                # The first request that failed cancelled the others; callers expect a single error.
                raise errors.exceptions[0] from errors
            for schema_id, task in zip(part, tasks, strict=True):
                await self._learn(schema_id, task.result())

    async def _learn(self, schema_id: int, schema: Schema | None) -> None:
        # Garbage may begin with any id, so the cache is bounded. A schema that was evicted is fetched again.
        for remembered in (self._known, self._unusable):
            while len(remembered) >= REGISTRY_SCHEMAS_MAX:
                del remembered[next(iter(remembered))]
        try:
            self._known[schema_id] = await importing(self._made, schema)
            self._unusable.pop(schema_id, None)
        except ValueError as error:
            self._unusable[schema_id] = (str(error), self._clock.monotonic_s() + REGISTRY_UNKNOWN_S)

    def _made(self, schema: Schema | None) -> Decode:
        if schema is None:
            raise ValueError("is not known to the registry")
        wanted = TYPES[self._settings.encoding]
        if schema.type != wanted:
            raise ValueError(f"is of type {schema.type}, and `format` expects {wanted}")
        if self._settings.encoding == "json":
            return checked
        if self._settings.encoding == "protobuf":
            from millstream_connectors.shared.formats import protobuf

            return protobuf.decoder(protobuf.parsed(schema))
        from millstream_connectors.shared.formats import avro

        return avro.decoder(avro.parsed(schema), self._reader)

    async def _learn_reader(self) -> None:
        wanted = self._settings.reader_schema
        if wanted is None or self._reader is not None:
            return
        schema = await self._registry.schema(wanted)
        try:
            if schema is None or schema.type != "AVRO":
                raise ValueError("is not known to the registry" if schema is None else f"is of type {schema.type}")
            self._reader = await importing(_parsed, schema)
        except ValueError as error:
            raise UserError(codes.TARGET_UNFIT, f"{self._where}: `readerSchema`: schema {wanted} {error}") from error

    def _decoded(self, value: bytes) -> bytes | ValueError:
        if not value:
            return value
        schema_id = id_of(value)
        if schema_id is None:
            return ValueError(
                f"the value begins with {shown(value[:HEADER_BYTES])}, which is not Confluent's wire format: a zero "
                "byte and the id of a schema in four bytes"
            )
        decode = self._known.get(schema_id)
        if decode is None:
            # A batch with more schemas than the cache holds has evicted its first ones.
            reason = self._unusable.get(schema_id, ("was evicted: too many schemas in one batch", 0.0))[0]
            return ValueError(f"schema {schema_id} {reason}")
        try:
            made = decode(value[HEADER_BYTES:])
        except ValueError as error:
            return ValueError(f"schema {schema_id}: {error}")
        if len(made) > RECORD_BYTES_MAX:
            return ValueError(f"schema {schema_id}: as JSON it has {len(made)} bytes; the limit is {RECORD_BYTES_MAX}")
        return made


def _parsed(schema: Schema) -> Any:
    from millstream_connectors.shared.formats import avro

    return avro.parsed(schema)


@asynccontextmanager
async def open_decoder(settings: Format, base_dir: Path, clock: Clock, where: str) -> AsyncIterator[Decoder]:
    """Errors: those of `open_registry`."""
    async with open_registry(settings.registry, base_dir, where) as registry:
        yield Decoder(settings, registry, clock, where)
