"""Opens a lane of the source in a pipeline file.

Above it: the vertex process. Below it: one folder per kind of source, found by name. It does not know how a source
works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.clock import Clock
from millstream.errors import UserError
from millstream.extract import Extraction, time_parser
from millstream.importing import importing
from millstream.keys import bytes_of_key, former_text_of_key, text_of_key
from millstream.record import LaneId
from millstream.spec.needs import naming_needs
from millstream.spec.sources import Source
from millstream.spec.values import SpecModel
from millstream.udf.protocol import StreamName, UdfClient
from millstream_connectors.shared.extracting_lane import ExtractingLane
from millstream_reader.connector import SourceConnector, SourceOwner
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceLane


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
    former_keys: bool = False,
) -> AsyncIterator[SourceLane]:
    """The open lane of `source`, which continues at `position` (empty at the first start).

    `base_dir` is the directory of the pipeline file, which its paths are relative to. A user-defined source needs
    `udf_client` and `stream_name`, and an HTTP source needs `seen`, to refuse records whose ids its lane cannot
    remember. `former_keys`: whether keys have the texts of earlier versions. Errors: those of `SourceLane.read`, for
    problems that show immediately.
    """
    connector, settings = source.connector, source.settings
    if not isinstance(connector, SourceConnector):
        raise UserError(
            codes.EXTENSION,
            f"lane {lane}: the source {source.kind} cannot be opened: its object is not a SourceConnector",
        )
    extraction = extraction_of(source)
    owner = SourceOwner(
        lane=lane,
        partitions=partitions,
        position=position,
        base_dir=base_dir,
        clock=clock,
        extraction=extraction,
        client=udf_client,
        stream_name=stream_name,
        seen=seen,
        key_mapping=(
            bytes_of_key if source.key_format is not None else former_text_of_key if former_keys else text_of_key
        ),
    )
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(await importing(_origin, source, connector, settings, owner))
        if any(source.formats()):
            opened = await stack.enter_async_context(await importing(_decoding, opened, source, owner))
        yield ExtractingLane(opened, extraction) if extraction.reads_anything and not connector.extracts else opened


def _origin(
    source: Source, connector: SourceConnector[SpecModel], settings: SpecModel, owner: SourceOwner
) -> AbstractAsyncContextManager[SourceLane]:
    with naming_needs(source, f"{owner.where}: the {source.kind} source"):
        return connector.open(settings, owner)


def _decoding(opened: SourceLane, source: Source, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
    # Imported only here, because it imports an HTTP client.
    from millstream_connectors.shared.decoding_lane import decoding

    return decoding(opened, source, owner.position, base_dir=owner.base_dir, clock=owner.clock, where=owner.where)


def extraction_of(source: Source) -> Extraction:
    """The extraction for `eventTime` and `keys`."""
    wanted = source.event_time
    return Extraction(
        time_field=wanted.field if wanted is not None else None,
        time_header=wanted.header if wanted is not None else None,
        parse_time=time_parser(wanted.format if wanted is not None else "rfc3339"),
        key_fields=source.keys,
    )
