"""The log of a Delta table: which files a version has added, and whether it changed anything else.

Above it: the lane, in its worker thread. Below it: deltalake, and the table's files.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from millstream import codes
from millstream.errors import DamageError, MillstreamError
from millstream.extract import shown
from millstream.json_parser import parse_json
from millstream.limits import BLOCK_BYTES_MAX
from millstream_connectors.delta.client import ABSENT, FAILURES, error_of
from millstream_connectors.delta.opening import TableOpening
from millstream_connectors.delta.settings import DeltaSource
from millstream_connectors.file.source.table_file import UNREADABLE, parquet_rows, unreadable_file
from millstream_connectors.file.source.value_as_json import as_json
from millstream_connectors.lake.source_lane import StateFiles, TableReader
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.objects.settings import is_url

_AS_WRITTEN = ("long", "integer", "short", "byte", "boolean", "float", "double")
"""Types whose values in the log are valid JSON."""
_TIMES = ("timestamp", "timestamp_ntz")


class AddedFile(NamedTuple):
    """A file with rows."""

    path: str
    """Path within the table."""
    members: bytes
    """The members that the partition adds to the JSON of each row: `,"dt":"2024-01-31"}`."""
    rows: int | None = None
    """None if the log does not say."""


class TableLog(TableReader[AddedFile]):
    """See `TableReader`."""

    failures = FAILURES
    noun = "version"
    removal = "it was removed (vacuum)"

    def __init__(self, settings: DeltaSource, base_dir: Path, where: str) -> None:
        """Raises `UserError` for missing credentials."""
        super().__init__(where, f"the Delta table {settings.path}", skip_changes=settings.skip_changes)
        self._path = settings.path
        self._opening = TableOpening(settings.path, settings.store, base_dir, where)
        self._table: DeltaTable | None = None

    def open(self) -> str:
        if self._table is None:
            with self._errors():
                try:
                    table = self._opening.open()
                except ABSENT as error:
                    raise self._unfit(f"there is no Delta table at {self._path}. Correct `path`") from error
            if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
                raise self._unfit(
                    f"{self.named} uses column mapping, which the source does not support. Use a table without column "
                    "mapping"
                )
            self._table = table
        return str(self._table.metadata().id)

    def newest(self) -> int:
        """Number of the newest version."""
        with self._errors():
            self._opening.update(self._opened)
            return self._opened.version()

    def crc_of(self, version: int) -> int | None:
        """Checksum of a version's file in the log; None if it was removed, as old ones are."""
        data = self._commit(version)
        return None if data is None else zlib.crc32(data)

    def snapshot(self, version: int) -> StateFiles[AddedFile]:
        """All files that the table has in a version."""
        try:
            table = self._opening.open(version)
            actions = pa.table(table.get_add_actions(flatten=False))
            self._check_number(actions.num_rows)
            # Of the statistics only the number of rows: others may be of thousands of columns.
            used = [name for name in ("path", "partition", "num_records") if name in actions.column_names]
            rows = actions.select(used).to_pylist()
            marks_rows = bool(pa.table(table.deletion_vectors()).num_rows)
        except FAILURES as error:
            if self._commit(version) is None:
                raise self._gone(version) from error
            raise self._error(error) from error
        if marks_rows:
            raise self._unfit(
                f"{self.named} has deletion vectors, which the source does not support. `REORG TABLE … APPLY (PURGE)` "
                "removes them"
            )
        added = [
            AddedFile(unquote(row["path"]), self._members(dict(row.get("partition") or {})), row.get("num_records"))
            for row in rows
        ]
        return StateFiles(sorted(added), crc=self.crc_of(version) or 0)

    def version(self, version: int) -> StateFiles[AddedFile]:
        """The files that a version has added. Raises `UserError` if it changes rows and `skipChanges` is not set."""
        data = self._commit(version)
        if data is None:
            raise self._gone(version)
        with translating(UNREADABLE, partial(self._unreadable, version)):
            return self._read(version, data)

    def _read(self, version: int, data: bytes) -> StateFiles[AddedFile]:
        added: list[AddedFile] = []
        operation, changes = "a change", False
        for line in data.splitlines():
            action = parse_json(line)
            if not isinstance(action, dict):
                raise ValueError(f"a line is not a JSON object: {shown(action)}")
            if "commitInfo" in action:
                operation = action["commitInfo"].get("operation", operation)
            if (removed := action.get("remove")) is not None:
                changes |= removed.get("dataChange", True)
            if (file := action.get("add")) is not None and file.get("dataChange", True):
                changes |= file.get("deletionVector") is not None
                members = {name: self._typed(name, text) for name, text in file["partitionValues"].items()}
                rows = parse_json(file.get("stats") or "{}").get("numRecords")
                added.append(AddedFile(unquote(file["path"]), self._members(members), rows))
        return (self._changing(version, operation) if changes else StateFiles(added))._replace(crc=zlib.crc32(data))

    def _stream(self, file: AddedFile) -> IO[bytes]:
        with translating(UNREADABLE, partial(unreadable_file, self._where, f"{file.path} of {self.named}")):
            return self._opening.files.open(file.path)

    def _rows_in(self, stream: IO[bytes], file: AddedFile, skipped: int) -> Iterator[list[bytes]]:
        for block in parquet_rows(stream, skipped, is_remote=is_url(self._path)):
            if not file.members:
                yield block
                continue
            # A value of the partition is in the log once, and in every row.
            together = max(1, BLOCK_BYTES_MAX // len(file.members))
            for start in range(0, len(block), together):
                yield [row[:-1] + file.members for row in block[start : start + together]]

    @property
    def _opened(self) -> DeltaTable:
        assert self._table is not None, "the table is open"
        return self._table

    def _commit(self, version: int) -> bytes | None:
        with self._errors(), translating(ValueError, partial(self._unreadable, version)):
            return self._opening.files.commit(version)

    def _typed(self, name: str, text: str | None) -> object:
        """A partition value, which the log has as text."""
        if text is None or text == "":
            return None
        for column in self._opened.schema().fields:
            if column.name == name and isinstance(column.type, PrimitiveType):
                if column.type.type in _AS_WRITTEN:
                    return parse_json(text)
                if column.type.type in _TIMES:
                    return datetime.fromisoformat(text)
        return text

    @staticmethod
    def _members(values: dict[str, object]) -> bytes:
        return b"," + as_json(values)[1:] if values else b""

    def _unreadable(self, version: int, error: BaseException) -> DamageError:
        return unreadable_file(
            self._where, f"version {version} in the log of {self.named}", error, "an entry of a Delta log"
        )

    def _gone(self, version: int) -> DamageError:
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"{self._where}: version {version} of {self.named} was removed from its log before it was read. Start over "
            "with --fresh to begin with the current rows of the table; a longer `delta.logRetentionDuration` keeps "
            "versions for longer",
        )

    def _error(self, error: BaseException) -> MillstreamError:
        return error_of(error, self._path, self._where)
