"""The `delta` source, as pipeline files name it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.values import Flag, PositiveDuration, ShapeProblem, SpecModel, Text, field
from millstream_connectors.shared.objects.settings import (
    ObjectStore,
    is_url,
    store_findings,
    store_notes,
    unused_problems,
    url_problem,
)
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class DeltaSource(SpecModel):
    """Reads the rows of a Delta Lake table, and then the rows that each later version adds."""

    noun = "a delta source"

    path: Text
    """Directory of the table, relative to the pipeline file, or its place in an object store: `s3://bucket/table`,
    `gs://…`, `az://container/…`."""
    follow: Flag = False
    """Continue with versions that appear later; the source then has no end. Default: end at the newest version, once
    everything up to it has been read."""
    poll_every_s: PositiveDuration = field(default=10.0, alias="pollEvery")
    """How often it looks for new versions, with `follow`. Duration, default 10s."""
    skip_changes: Flag = False
    """Skip versions that change or remove rows (UPDATE, DELETE, MERGE, overwriting), including the rows that they add.
    Default: such a version stops the lane."""
    store: ObjectStore | None = None
    """How to reach the object store. Default: as the environment says."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a `store` that has no effect."""
        yield from url_problem(self.path, ("path",))
        yield from unused_problems(self.store, (self.path,))
        if self.store is not None and not is_url(self.path):
            what = "`store` has no effect when `path` is a directory"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("store",), what, "`path: s3://bucket/table`")


class _Delta(SourceConnector[DeltaSource]):
    model = DeltaSource
    meaning = "Rows of a Delta Lake table, version by version."
    packages: ClassVar[Mapping[str, str]] = {"deltalake": "millstream[delta]", "pyarrow": "millstream[delta]"}
    promise = Guarantee(
        GuaranteeId.POSITION, "exactly once: it continues at the version, file and row of its last commit"
    )
    ends = "at the newest version, without `follow`"

    def bounded(self, settings: DeltaSource) -> bool | None:
        return not settings.follow

    def local_findings(self, settings: DeltaSource, place: Place) -> Iterator[Finding]:
        if is_url(settings.path):
            yield from store_findings(settings.store or ObjectStore(), (*place.path, "store"), place.base_dir)

    def online_findings(self, settings: DeltaSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.delta.source.log import TableLog

        async def look() -> Sequence[Finding]:
            await asyncio.to_thread(TableLog(settings, place.base_dir, "validate").open)
            return ()

        return look()

    def notes(self, settings: DeltaSource, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.store is not None:
            yield from store_notes(settings.store, (*path, "store"))

    def open(self, settings: DeltaSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.delta.source.lane import open_delta_source

        return open_delta_source(settings, owner)


DELTA = _Delta()
