"""The `spool` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding
from millstream_reader.connector import SourceConnector, SourceOwner
from millstream_toys.spool.settings import SpoolSource

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class Spool(SourceConnector[SpoolSource]):
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

    def open(self, settings: SpoolSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_toys.spool.source.lane import open_spool

        return open_spool(settings, owner)


SPOOL = Spool()
