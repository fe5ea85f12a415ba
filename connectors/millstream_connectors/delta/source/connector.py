"""The `delta` source, as pipeline files name it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding, Path
from millstream_connectors.delta.settings import DeltaSource
from millstream_connectors.shared.looking import no_findings
from millstream_connectors.shared.objects.settings import (
    is_url,
    store_findings,
    store_notes,
)
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Delta(SourceConnector[DeltaSource]):
    model = DeltaSource
    meaning = "Rows of a Delta Lake table, version by version."
    packages: ClassVar = {"deltalake": "millstream[delta]", "pyarrow": "millstream[delta]"}
    promise = Guarantee(
        GuaranteeId.POSITION, "exactly once: it continues at the version, file and row of its last commit"
    )
    ends = "at the newest version, without `follow`"

    def bounded(self, settings: DeltaSource) -> bool | None:
        return not settings.follow

    def local_findings(self, settings: DeltaSource, place: Place) -> Iterator[Finding]:
        if is_url(settings.path):
            yield from store_findings(settings.store, (*place.path, "store"), place.base_dir)

    def online_findings(self, settings: DeltaSource, place: Place) -> OnlineFindings:
        from millstream_connectors.delta.source.log import TableLog

        return no_findings(asyncio.to_thread(TableLog(settings, place.base_dir, "validate").open))

    def notes(self, settings: DeltaSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from store_notes(settings.store, (*path, "store"))

    def open(self, settings: DeltaSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.delta.source.lane import DeltaSourceLane
        from millstream_connectors.file.source.disk import open_lane

        return open_lane(partial(DeltaSourceLane, settings), owner)


DELTA = _Delta()
