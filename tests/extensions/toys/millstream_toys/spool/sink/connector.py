"""The `spool` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding
from millstream_toys.spool.settings import SpoolSink
from millstream_writer.connector import SinkConnector, SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class Spool(SinkConnector[SpoolSink]):
    model = SpoolSink
    meaning = "To files of a directory, named by numbers."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: the lane's file has the position and the number of the last record, and a record that is "
        "written again gets the same number",
    )

    def local_findings(self, settings: SpoolSink, place: Place) -> Iterator[Finding]:
        directory, path = place.base_dir / settings.path, (*place.path, "path")
        if not place.takes(("spool", directory), path):
            what = f"two sinks write to {directory}"
            yield Finding(codes.PLACE_TAKEN, path, what, "a directory for each sink")

    def place(self, settings: SpoolSink) -> str | None:
        return settings.path

    def open(self, settings: SpoolSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_toys.spool.sink.lane import open_spool

        return open_spool(settings, owner)


SPOOL = Spool()
