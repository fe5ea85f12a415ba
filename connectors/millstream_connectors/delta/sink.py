"""A Delta table as the target of one lane's commits: ownership, position and schema.

A Delta commit may contain application transactions: a name, and a version that replaces the previous one. They are part
of the table's state, and stay when its history expires. A lane has five, which together contain its position and its
owner:

    millstream/<pipeline>/<lane>/run, /epoch, /owner, /sequence, /index

Each commit of a lane is based on the table state that said "this owner, this position". If another commit with one of
these names has landed since, deltalake refuses it. So opening a lane, which commits only the five under a new epoch,
fences every older owner, however late its commit arrives. A lost answer is resolved in the same way: the lane is taken
over again, and then the table shows whether the commit exists. Commits of other lanes and of other programs that append
do not conflict: deltalake rebases the commit onto theirs.

Above it: the file sink's lane, in its worker thread. Below it: deltalake, an extra.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, SchemaMismatchError
from deltalake.schema import PrimitiveType, Schema

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError, UserError
from millstream.files import sync_path
from millstream.json_parser import parse_json
from millstream.limits import TABLE_METADATA_BYTES_MAX
from millstream.record import Position
from millstream_connectors.delta.client import (
    ABSENT,
    FAILURES,
    error_of,
    first_lines,
    is_listed_whole,
    listed_whole,
)
from millstream_connectors.delta.opening import TableOpening
from millstream_connectors.delta.settings import DeltaSink
from millstream_connectors.lake.lane_table import ConflictError, LaneTable, TableField, column_faults
from millstream_connectors.lake.rows import TableRows, rows_of
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.kept import TargetPosition
from millstream_connectors.shared.objects.settings import is_url
from millstream_writer.connector import SinkOwner

FRAME = "millstreamFrame"
"""Key in a commit's information, for users and for the check of a target that is ahead: the frame with the last
record."""
_HISTORY = 500
"""Number of commits that are searched for the name of a frame."""
_ANOTHER_RUN = "another run"


class DeltaLaneTable(LaneTable[DeltaTable]):
    """See `LaneTable`."""

    def __init__(self, settings: DeltaSink, rows: TableRows, owner: SinkOwner) -> None:
        """Raises `UserError` for missing credentials."""
        super().__init__(owner, f"the Delta table {settings.path}")
        self._settings = settings
        self._schema = rows.schema
        self._opening = TableOpening(settings.path, settings.store, owner.base_dir, owner.where)
        self._run = _number(owner.ledger_id)
        self._certain = False
        """Whether the object's state is that of this owner's last commit, so it names this owner."""
        self._synced = -1
        """Version up to which a local table is known to be on the disk. For earlier writes of others, this is not
        known: the previous owner may have been killed between its last commit and its fsync."""

    @property
    def remedy(self) -> str:
        another = "name another table in `path`"
        if self._owner.must_be_known:
            return another
        return f"move the table {self._settings.path} away, or {another}"

    def _claim(self, table: DeltaTable, position: Position) -> None:
        self._opening.check_newer(table)
        with step("delta_sink.take_over", self._owner.lane.vertex):
            table.create_write_transaction(
                [], "append", table.schema(), None, commit_properties=self._properties(position, "")
            )
        # This does not update the object; commits that land meanwhile are noticed, too.
        self._opening.update(table)
        if not self._is_ours(table):
            raise ConflictError
        self._make_durable(table)
        self._certain = True

    def _is_certain(self, table: DeltaTable) -> bool:
        """If not, the lane is taken over again: a commit whose answer was lost is refused from then on."""
        return self._certain or self._is_ours(table)

    def _commit(self, file: list[bytes], end: Position, frame: str) -> None:
        """One commit: the rows, and the position after them."""
        table = self._table
        assert table is not None, "the lane has been taken over"
        lacking = {field.name for field in self._schema} != {field.name for field in table.schema().fields}
        before = table.version()
        self._opening.check_newer(table)
        with step("delta_sink.commit", self._owner.lane.vertex):
            write_deltalake(
                table,
                rows_of(file),
                mode="append",
                schema_mode="merge" if lacking else None,
                commit_properties=self._properties(end, frame),
            )
        self._make_durable(table)
        self._position = end
        self._certain = table.version() == before + 1

    def _properties(self, position: Position, frame: str) -> CommitProperties:
        said = {
            "run": self._run,
            "epoch": self._owner.epoch,
            "owner": int(self.name),
            "sequence": position.sequence,
            "index": position.record_index,
        }
        names = [Transaction(f"{self._application}/{part}", number) for part, number in said.items()]
        metadata = {"millstreamLane": self._application, FRAME: frame, "millstreamPosition": list(position)}
        return CommitProperties(app_transactions=names, custom_metadata=metadata)

    def _opened(self) -> DeltaTable:
        if self._table is None:
            try:
                table = self._opening.open()
            except ABSENT:
                if self._must_exist:
                    raise self._lost() from None
                table = self._created()
            self._check_fit(faults_of(table, self._schema, self._settings))
            self._table = table
        return self._table

    def _created(self) -> DeltaTable:
        """A table without rows, created by this lane or another one."""
        try:
            with step("delta_sink.create", self._owner.lane.vertex):
                table = DeltaTable.create(
                    self._opening.address,
                    Schema.from_arrow(self._schema),
                    mode="error",
                    partition_by=list(self._settings.partition_by),
                    storage_options=self._opening.options,
                )
            self._make_durable(table)
            return table
        except FAILURES as error:
            try:
                # Another lane may have created it first.
                return self._opening.open()
            except ABSENT:
                raise error from None

    def _kept(self, table: DeltaTable) -> TargetPosition | None:
        said = {
            part: table.transaction_version(f"{self._application}/{part}")
            for part in ("run", "epoch", "owner", "sequence", "index")
        }
        run, epoch, owner, sequence, index = said.values()
        if run is None:
            return None
        if epoch is None or owner is None or sequence is None or index is None:
            raise DamageError(
                codes.TARGET_POSITION_LOST,
                f"{self._owner.where}: the Delta table {self._settings.path} has lost a part of "
                f"{self._application}: {said}. Nothing was written now. Restore the table's log",
            )
        name = self._owner.ledger_id if run == self._run else _ANOTHER_RUN
        return TargetPosition(name, epoch, str(owner), Position(sequence, index), "")

    def _is_ours(self, table: DeltaTable) -> bool:
        """Whether the object's state names this owner."""
        return table.transaction_version(f"{self._application}/owner") == int(self.name)

    def _with_frame(self, table: DeltaTable, kept: TargetPosition) -> TargetPosition:
        """The position with the frame of the lane's last record, if the history goes back that far."""
        for version in range(table.version(), max(-1, table.version() - _HISTORY), -1):
            commit = self._commit_info(version)
            if commit is None:
                break
            if commit.get("millstreamLane") == self._application and commit.get(FRAME):
                at = commit.get("millstreamPosition")
                return kept._replace(frame=str(commit[FRAME])) if at == list(kept.position) else kept
        return kept

    def _commit_info(self, version: int) -> dict[str, Any] | None:
        """What a commit said about itself; None if the log has it no longer."""
        try:
            entry = self._opening.files.commit(version)
            if entry is None:
                return None
            lines = entry.splitlines()
            return next((dict(parse_json(line)["commitInfo"]) for line in lines if b'"commitInfo"' in line), {})
        except (ValueError, LookupError, TypeError) as error:
            what = f"{self._owner.where}: version {version} in the log of {self.target} cannot be read: {error}"
            raise UserError(codes.TARGET_UNFIT, what) from error

    def _make_durable(self, table: DeltaTable) -> None:
        """Write a local table to the disk up to the version of `table`: deltalake does not fsync."""
        if is_url(self._settings.path):
            return
        root = Path(self._opening.address)
        paths = {root / "_delta_log", root, root.parent}
        version = table.version()
        for log in (root / "_delta_log" / f"{number:020}.json" for number in range(self._synced + 1, version + 1)):
            if not log.exists():
                # An old entry, which a checkpoint has replaced.
                continue
            paths.add(log)
            for line in actions_of(log, f"{self._owner.where}: {self.target}"):
                added = parse_json(line).get("add")
                file = root / unquote(added["path"]) if added is not None else None
                # A file that was compacted and removed since needs no fsync.
                if file is not None and file.exists():
                    paths |= {file, *(parent for parent in file.parents if parent.is_relative_to(root))}
        # Files first, then their directories, innermost first.
        for path in sorted(paths, key=lambda path: (path.is_dir(), -len(path.parts))):
            sync_path(path)
        self._synced = version

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise ConflictError from error
        except SchemaMismatchError as error:
            raise UserError(
                codes.TARGET_UNFIT, f"{self._owner.where}: {self.target} was changed: {first_lines(str(error), error)}"
            ) from error
        except FAILURES as error:
            table, path, opening = self._table, self._settings.path, self._opening
            if table is not None and is_listed_whole(error, opening.address, opening.options, table.version()):
                raise listed_whole(path, self._owner.where) from error
            raise error_of(error, path, self._owner.where) from error


def actions_of(log: Path, place: str) -> Iterator[bytes]:
    """The lines of a file of the log, one by one. Raises `UserError` for one that is too long."""
    with log.open("rb") as file:
        while line := file.readline(TABLE_METADATA_BYTES_MAX + 1):
            if len(line) > TABLE_METADATA_BYTES_MAX:
                what = f"{place}: an action in {log.name} has more than {TABLE_METADATA_BYTES_MAX} bytes, the limit"
                raise UserError(codes.TARGET_UNFIT, what)
            yield line


def _number(text: str) -> int:
    """A number of 62 bits for a name, because versions of transactions are numbers."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 2


def faults_of(table: DeltaTable, schema: pa.Schema, settings: DeltaSink) -> Iterator[Fault]:
    """What in the table does not fit the settings."""
    yield from column_faults(_fields(Schema.from_arrow(schema)), _fields(table.schema()), settings)
    partitions = list(table.metadata().partition_columns)
    if partitions != list(settings.partition_by):
        what = f"the table is partitioned by {', '.join(partitions) or 'nothing'}"
        yield Fault(("partitionBy",), what, f"`partitionBy: [{', '.join(partitions)}]`")


def _fields(schema: Schema) -> dict[str, TableField]:
    return {
        field.name: TableField(
            field.type.type if isinstance(field.type, PrimitiveType) else str(field.type), field.nullable
        )
        for field in schema.fields
    }


def look(settings: DeltaSink, base_dir: Path) -> Sequence[Fault]:
    """What in an existing table does not fit the settings. Raises Millstream errors if it cannot be reached."""
    opening = TableOpening(settings.path, settings.store, base_dir, "validate")
    with translating(FAILURES, partial(error_of, path=settings.path, where="validate")):
        try:
            table = opening.open()
        except ABSENT:
            return ()
    return list(faults_of(table, TableRows(settings.columns, settings.of_time).schema, settings))
