"""The snapshots of an Iceberg table: which files a snapshot has added, and whether it changed anything else.

Above it: the lane, in its worker thread. Below it: pyiceberg.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io import InputStream
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from millstream import codes
from millstream.errors import DamageError, MillstreamError
from millstream_connectors.file.source.table_file import parquet_rows
from millstream_connectors.iceberg.bounds import live_entries
from millstream_connectors.iceberg.client import ABSENT, FAILURES, error_of, open_catalog
from millstream_connectors.iceberg.settings import IcebergSource
from millstream_connectors.lake.source_lane import StateFiles, TableReader
from millstream_connectors.shared.objects.settings import is_url


class AddedFile(NamedTuple):
    """A file with rows."""

    path: str
    schema: Schema
    """Schema of its snapshot, for the names of columns."""
    rows: int | None


class Snapshots(TableReader[AddedFile]):
    """See `TableReader`."""

    failures = FAILURES
    noun = "snapshot"
    removal = "its snapshot expired"

    def __init__(self, settings: IcebergSource, base_dir: Path, where: str) -> None:
        super().__init__(where, f"the Iceberg table {settings.table}", skip_changes=settings.skip_changes)
        self._settings = settings
        self._base_dir = base_dir
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()

    def open(self) -> str:
        settings, where = self._settings, self._where
        if self._table is None:
            with self._errors():
                if self._catalog is None:
                    self._catalog = open_catalog(settings.catalog, settings.store, self._base_dir, where, create=False)
                try:
                    self._table = self._catalog.load_table(settings.table)
                except ABSENT as error:
                    raise self._unfit(
                        f"there is no Iceberg table {settings.table} in the catalog. Correct `table`"
                    ) from error
        return str(self._opened.metadata.table_uuid)

    def newest(self) -> int | None:
        """The newest snapshot; None if the table has none yet."""
        snapshot = self._refreshed().current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def after(self, last: int | None) -> list[int] | None:
        """The snapshots after `last` (None: from the beginning), in order; None if `last` is not an ancestor of the
        newest one."""
        table = self._refreshed()
        found: list[int] = []
        at = table.current_snapshot()
        while at is not None and at.snapshot_id != last:
            found.append(at.snapshot_id)
            parent = at.parent_snapshot_id
            if parent == last:
                return found[::-1]
            if parent is None:
                # An expired snapshot is no longer a parent.
                if last is not None and table.metadata.snapshot_by_id(last) is None:
                    raise self._gone(last)
                return None
            at = table.metadata.snapshot_by_id(parent)
            if at is None:
                raise self._gone(parent)
        return found if at is not None or last is None else None

    def rows_added(self, snapshot_ids: Sequence[int]) -> int | None:
        """Rows that these snapshots have added, by their summaries; None if one does not say."""
        rows = 0
        for snapshot_id in snapshot_ids:
            snapshot = self._opened.metadata.snapshot_by_id(snapshot_id)
            summary = None if snapshot is None else snapshot.summary
            if summary is None:
                return None
            if summary.operation == Operation.APPEND:
                rows += int(summary.additional_properties.get("added-records", 0))
        return rows

    def whole(self, snapshot_id: int) -> StateFiles[AddedFile]:
        """All files that the table has in a snapshot."""
        with self._errors():
            snapshot, manifests = self._read(snapshot_id)
            removing = [one for one in manifests if one.content == ManifestContent.DELETES]
            if any(one.has_added_files() or one.has_existing_files() for one in removing):
                raise self._unfit(f"{self.named} has delete files, which the source does not support. Compact it")
            entries = (
                entry.data_file
                for manifest in manifests
                if manifest.content == ManifestContent.DATA
                for entry in live_entries(manifest, self._opened.io)
            )
            return StateFiles(self._added(snapshot, entries))

    def added(self, snapshot_id: int) -> StateFiles[AddedFile]:
        """The files that a snapshot has added. Raises `UserError` if it changes rows and `skipChanges` is not set."""
        with self._errors():
            snapshot, manifests = self._read(snapshot_id)
            operation = None if snapshot.summary is None else snapshot.summary.operation
            if operation == Operation.REPLACE:
                # Compaction: rows were only moved.
                return StateFiles(())
            if operation != Operation.APPEND:
                return self._changing(snapshot_id, "unknown" if operation is None else operation.value)
            entries = (
                entry.data_file
                for manifest in manifests
                if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot_id
                for entry in live_entries(manifest, self._opened.io)
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id
            )
            return StateFiles(self._added(snapshot, entries))

    def _stream(self, file: AddedFile) -> InputStream:
        return self._opened.io.new_input(file.path).open()

    def _rows_in(self, stream: Any, file: AddedFile, skipped: int) -> Iterator[list[bytes]]:
        is_remote = is_url(file.path) and not file.path.startswith("file:")
        return parquet_rows(stream, skipped, lambda batch: _members(batch, file.schema), is_remote=is_remote)

    @property
    def _opened(self) -> Table:
        assert self._table is not None, "the table is open"
        return self._table

    def _refreshed(self) -> Table:
        with self._errors():
            try:
                return self._opened.refresh()
            except ABSENT as error:
                what = f"{self._where}: {self.named} was dropped. Restore it, or start over with --fresh"
                raise DamageError(codes.SOURCE_FILE_CHANGED, what) from error

    def _read(self, snapshot_id: int) -> tuple[Snapshot, list[ManifestFile]]:
        snapshot = self._opened.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise self._gone(snapshot_id)
        try:
            return snapshot, snapshot.manifests(self._opened.io)
        except FileNotFoundError as error:
            raise self._gone(snapshot_id) from error

    def _added(self, snapshot: Snapshot, files: Iterable[DataFile]) -> list[AddedFile]:
        schema = self._opened.schemas().get(snapshot.schema_id or 0, self._opened.schema())
        found: list[AddedFile] = []
        for file in files:
            if file.file_format != FileFormat.PARQUET:
                raise self._unfit(f"{file.file_path} of {self.named} is not a Parquet file")
            found.append(AddedFile(file.file_path, schema, file.record_count))
            self._check_number(len(found))
        return sorted(found, key=lambda file: file.path)

    def _gone(self, snapshot_id: int) -> DamageError:
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"{self._where}: snapshot {snapshot_id} of {self.named} expired before all later snapshots were "
            "read. Start over with --fresh to begin with the current rows of the table; keep snapshots "
            "for longer",
        )

    def _error(self, error: BaseException) -> MillstreamError:
        return error_of(error, self._settings, self._where)


def _members(batch: pa.RecordBatch, schema: Schema) -> Any:
    """The table's columns, with their current names. A file keeps the names of its time."""
    columns, names = [], []
    for index, field in enumerate(batch.schema):
        number = (field.metadata or {}).get(PYARROW_PARQUET_FIELD_ID_KEY)
        name = field.name if number is None else schema.find_column_name(int(number))
        if name is not None:
            columns.append(batch.column(index))
            names.append(name)
    return pa.RecordBatch.from_arrays(columns, names=names)
