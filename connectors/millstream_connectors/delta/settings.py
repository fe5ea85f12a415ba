"""The settings of the `delta` source and sink, as pipeline files have them. Only a note looks at the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator

from millstream.spec.problems import Path
from millstream.spec.values import Flag, PositiveDuration, ShapeProblem, SpecModel, Text, field
from millstream_connectors.lake.settings import TableCommits
from millstream_connectors.shared.objects.settings import ObjectStore, place_problems

EMULATOR = "AZURE_STORAGE_USE_EMULATOR=true and AZURITE_BLOB_STORAGE_URL=http://HOST:PORT"
"""What the environment of a pipeline needs that writes to Azurite."""
_TRUE = ("1", "true", "on", "yes", "y")
"""As the client reads it, in any case of letters."""


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
        yield from place_problems(self.store, self.path, url="s3://bucket/table")


class _DeltaTable(SpecModel):
    """The table to write to."""

    noun = "a delta table"

    path: Text
    """Directory of the table, relative to the pipeline file, or its place in an object store: `s3://bucket/table`,
    `gs://…`, `az://container/…`. The table is created if it does not exist."""


class DeltaSink(TableCommits, _DeltaTable):
    """Appends records to a Delta Lake table, each commit with the lane's position."""

    noun = "a delta sink"

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Also rejects a path in an unsupported store, and a `store` that has no effect."""
        yield from super().relation_problems()
        yield from place_problems(self.store, self.path, url="s3://bucket/table")

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """A note on a table that is probably in Azurite, which emulates Azure's blob storage: Azure's own endpoints
        have TLS.

        Azurite lists objects from the first one on, wherever a client asks it to begin (`startFrom` of List Blobs).
        deltalake commits with such listings, and leaves the first objects out by itself only if its environment says
        that the store is an emulator. The environment then also says where the emulator is, in place of `endpoint`.
        Reading needs none of this.
        """
        told = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in _TRUE
        endpoint = (self.store.endpoint if self.store is not None else None) or ""
        if not told and self.path.startswith("az://") and endpoint.startswith("http://"):
            what = f"the table can be written in Azurite only with {EMULATOR} in the environment of the pipeline"
            yield (*path, "store", "endpoint"), what
