"""From the source a user wrote to an open lane of it.

Above it: the vertex process. Below it: one module per kind of source. It owns how the fields of the spec become what
a source works with; the sources themselves do not know the spec.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.clock import MICROSECONDS, Clock
from millstream.errors import MillstreamError
from millstream.extract import Extraction, time_parser
from millstream.record import LaneId
from millstream.spec.models import CsvOptions, FileSource, GeneratorSource, HttpSource, Source
from millstream.spec.references import resolve
from millstream.udf.protocol import StreamName, UdfClient
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceLane
from millstream_reader.sources.extracting import ExtractingLane
from millstream_reader.sources.file.csv_parsing import CsvFormat
from millstream_reader.sources.file.disk import FilePatterns
from millstream_reader.sources.file.follow import open_followed
from millstream_reader.sources.file.lane import open_files
from millstream_reader.sources.file.text_file import TextFormat
from millstream_reader.sources.generator.lane import GeneratorPlan, open_generator
from millstream_reader.sources.udsource.lane import open_user_defined

if TYPE_CHECKING:
    from millstream_reader.sources.http.lane import HttpPlan


@asynccontextmanager
async def open_source(
    source: Source,
    lane: LaneId,
    partitions: int,
    position: bytes,
    *,
    base_dir: Path,
    clock: Clock,
    udf_client: UdfClient | None = None,
    stream_name: StreamName | None = None,
    seen: SeenIds | None = None,
) -> AsyncIterator[SourceLane]:
    """The open lane of `source` that goes on at `position` (empty: at the very start).

    `base_dir` is the directory of the pipeline file, from which its paths count. A user-defined source needs
    `udf_client` and `stream_name`, and an HTTP source `seen`, to refuse records whose ids its lane cannot remember.
    Errors: those of `SourceLane.read`, for what shows at once.
    """
    extraction = extraction_of(source)
    async with AsyncExitStack() as stack:
        if source.file is not None:
            opener = open_followed if source.file.follow else open_files
            patterns = FilePatterns(source.file.paths, base_dir)
            text = text_format(source.file, extraction)
            yield await stack.enter_async_context(opener(patterns, text, lane, partitions, position, clock=clock))
            return
        if source.http is not None:
            # A web server takes a while to import, and every process that is started again would wait for it.
            from millstream_reader.sources.http.lane import open_http

            http = http_plan(source.http, base_dir, lane, clock)
            yield await stack.enter_async_context(
                open_http(http, extraction, lane, partitions, position, clock=clock, seen=seen)
            )
            return
        opened: SourceLane
        if source.generator is not None:
            plan = generator_plan(source.generator)
            opened = await stack.enter_async_context(open_generator(plan, lane, partitions, position, clock=clock))
        else:
            if udf_client is None or stream_name is None:
                raise MillstreamError(f"lane {lane}: a user-defined source was opened without its function")
            opened = await stack.enter_async_context(
                open_user_defined(udf_client, stream_name, lane, partitions, position, clock=clock)
            )
        yield ExtractingLane(opened, extraction) if extraction.reads_anything else opened


def extraction_of(source: Source) -> Extraction:
    """What `eventTime` and `keys` mean."""
    wanted = source.event_time
    return Extraction(
        time_field=wanted.field if wanted is not None else None,
        time_header=wanted.header if wanted is not None else None,
        parse_time=time_parser(wanted.format if wanted is not None else "rfc3339"),
        key_fields=source.keys,
    )


def text_format(source: FileSource, extraction: Extraction) -> TextFormat:
    """What `format`, `csv` and `encoding` mean."""
    options = source.csv or CsvOptions()
    types = tuple((column.name, column.type) for column in options.columns)
    return TextFormat(source.format, source.encoding, CsvFormat(options.delimiter, options.header, types), extraction)


def http_plan(source: HttpSource, base_dir: Path, lane: LaneId, clock: Clock) -> HttpPlan:
    """What the fields of an `http` mean. Errors: `UserError` when the token or the certificates cannot be had."""
    from millstream.wire.connections import ConnectionLimits
    from millstream.wire.replaced import Replaced, Tokens, server_context
    from millstream_reader.sources.http.lane import HttpPlan

    auth, tls = source.auth, source.tls
    tokens = contexts = None
    if auth is not None:
        what = f"lane {lane}: the token of `auth`"
        tokens = Replaced(lambda: [resolve(auth.token, base_dir, what)], Tokens, what, clock)
    if tls is not None:
        certificates = f"lane {lane}: `tls`"
        named = {"certificate": tls.certificate, "key": tls.key, "clientCa": tls.client_ca}
        given = {f"{certificates}, its `{name}`": value for name, value in named.items() if value is not None}
        contexts = Replaced(
            lambda: [resolve(value, base_dir, name) for name, value in given.items()],
            lambda texts: server_context(texts, certificates),
            certificates,
            clock,
        )
    return HttpPlan(
        host=source.host,
        port=source.port,
        buffer_records=source.buffer,
        tokens=tokens.newest if tokens is not None else None,
        tls=contexts.newest if contexts is not None else None,
        limits=ConnectionLimits(source.connections_max, source.client_connections_max),
        anybody=source.asks_who or source.allow_unauthenticated,
    )


def generator_plan(source: GeneratorSource) -> GeneratorPlan:
    """What the fields of a `generator` mean."""
    step_s = source.event_time_step_s
    if step_s is None and source.start is not None and source.rpu:
        step_s = source.duration_s / source.rpu
    return GeneratorPlan(
        message_bytes=source.msg_size,
        records=source.records,
        records_per_s=source.rpu / source.duration_s,
        value=source.value,
        blob=base64.b64decode(source.value_blob) if source.value_blob is not None else None,
        key_count=source.key_count,
        step_us=step_s * MICROSECONDS if step_s is not None else None,
        start_us=_start_us(source.start) if source.start is not None else None,
        jitter_us=_microseconds(source.jitter_s),
        late_share=source.late_share,
        late_by_us=_microseconds(source.late_by_s),
        out_of_order_share=source.out_of_order_share,
        out_of_order_by_us=_microseconds(source.out_of_order_by_s),
        seed=source.seed,
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)


def _start_us(written: str) -> int:
    start = datetime.fromisoformat(written)
    return round((start if start.tzinfo is not None else start.replace(tzinfo=UTC)).timestamp() * MICROSECONDS)
