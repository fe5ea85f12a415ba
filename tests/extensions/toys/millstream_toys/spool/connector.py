"""The `spool` source and sink, as pipeline files name them."""

from __future__ import annotations

from collections.abc import Iterator

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_toys.spool.settings import SpoolSink, SpoolSource
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Source(SourceConnector[SpoolSource]):
    model = SpoolSource
    meaning = "Files of a directory, in the order of their numbers."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the number of its last commit")
    ends = "after the last file, with `stopAtEnd`"
    has_headers = False

    def bounded(self, settings: SpoolSource) -> bool | None:
        return settings.stop_at_end

    def local_findings(self, settings: SpoolSource, place: Place) -> Iterator[Finding]:
        directory = place.base_dir / settings.path
        if not directory.is_dir():
            what, expected = f"there is no directory {directory}", "a directory with files that are named by numbers"
            yield Finding(codes.NO_SUCH_FILE, (*place.path, "path"), what, expected)

    def open(self, settings: SpoolSource, owner: SourceOwner) -> SourceOpening:
        from millstream_toys.spool.source.lane import open_spool

        return open_spool(settings, owner)


class _Sink(SinkConnector[SpoolSink]):
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

    def open(self, settings: SpoolSink, owner: SinkOwner) -> SinkOpening:
        from millstream_toys.spool.sink.lane import open_spool

        return open_spool(settings, owner)


SOURCE = _Source()
SINK = _Sink()
