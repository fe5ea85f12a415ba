"""Opens the kind of sink a spec names.

Above it: the delivery. Below it: one module per kind. Knows the spec's names and nothing of how a sink works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.clock import Clock
from millstream.errors import UserError
from millstream.record import LaneId, Position
from millstream.spec.models import FallbackSink
from millstream.udf.protocol import StreamName, UdfClient
from millstream_writer.sink import SinkLane
from millstream_writer.sinks.blackhole.lane import open_blackhole_sink
from millstream_writer.sinks.envelope import ENVELOPE_COLUMNS, EnvelopeLane
from millstream_writer.sinks.file.directory import DirectoryOwner
from millstream_writer.sinks.file.lane import HeldInstead, open_file_sink
from millstream_writer.sinks.log.lane import open_log_sink
from millstream_writer.sinks.udsink.lane import open_udf_sink


@dataclass(frozen=True, slots=True)
class SinkOwner:
    """Who opens a sink: one owner of one lane."""

    pipeline: str
    lane: LaneId
    replica: int
    epoch: int
    """Of the lane's mark. An owner with a higher epoch replaces one with a lower."""
    start: Position
    """The lane's mark: where it goes on."""
    ledger_id: str
    """Of the vertex's ledger: another one after the pipeline was started over, when positions begin again."""
    base_dir: Path
    """What relative paths in the spec are relative to."""
    clock: Clock
    held_instead: HeldInstead
    fallback: bool = False
    """The sink is the lane's fallback: it gets some of the records only."""
    envelope: bool = False
    """The sink gets the envelope of each record as its value."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.pipeline}/{self.lane}"

    @property
    def name(self) -> str:
        """Of the lane in a target that several lanes share."""
        role = ".fallback" if self.fallback else ""
        return f"{self.lane.vertex}{role}.{self.lane.key}"

    @property
    def stream_name(self) -> StreamName:
        return StreamName(self.pipeline, self.lane.vertex, self.lane.key, self.replica)

    def as_fallback(self, *, envelope: bool = False) -> SinkOwner:
        return replace(self, fallback=True, envelope=envelope)


@asynccontextmanager
async def open_sink(
    spec: FallbackSink, owner: SinkOwner, *, udf_client: UdfClient | None = None
) -> AsyncIterator[SinkLane]:
    """The lane's target, open from entering to leaving. `udf_client` is needed by a `udsink` only."""
    async with _open_kind(spec, owner, udf_client) as lane:
        if owner.envelope and spec.kind not in ("log", "blackhole"):
            columns = spec.file is not None and spec.file.format in ("csv", "parquet")
            yield EnvelopeLane(lane, flat=columns)
        else:
            yield lane


def _open_kind(
    spec: FallbackSink, owner: SinkOwner, udf_client: UdfClient | None
) -> AbstractAsyncContextManager[SinkLane]:
    if spec.log is not None:
        return open_log_sink()
    if spec.blackhole is not None:
        return open_blackhole_sink()
    if spec.udsink is not None and udf_client is not None:
        return open_udf_sink(udf_client, owner.stream_name)
    if spec.http is not None:
        # An HTTP client takes a while to import, and every process that is started again would wait for it.
        from millstream_writer.sinks.http.lane import open_http_sink

        return open_http_sink(spec.http, owner.base_dir, owner.where, envelope=owner.envelope)
    if spec.file is not None:
        directory_owner = DirectoryOwner(
            pipeline=owner.pipeline,
            vertex=owner.lane.vertex,
            lane=owner.name,
            epoch=owner.epoch,
            ledger_id=owner.ledger_id,
            where=owner.where,
        )
        file = spec.file
        if owner.envelope and file.format == "parquet" and not file.columns:
            file = file.model_copy(update={"columns": ENVELOPE_COLUMNS})
        return open_file_sink(
            file,
            directory_owner,
            base_dir=owner.base_dir,
            start=owner.start,
            clock=owner.clock,
            trust_names=not owner.fallback,
            held_instead=owner.held_instead,
        )
    raise UserError(f"{owner.where}: a user-defined sink was opened without its function")
