"""A Delta table as the place of one lane's commits: who may write, how far the lane is, what fits.

A commit of Delta may hold transactions of applications: a name, and a version that takes the place of the one before.
They are part of the table's state, and stay when its history expires. A lane has five, which say together how far it is
and whose it is:

    millstream/<pipeline>/<lane>/run, /epoch, /owner, /sequence, /index

Each commit of a lane is made from the state of the table that said "this owner, this position". If another commit with
one of these names has landed since, deltalake refuses it. So opening a lane, which commits only the five under a new
epoch, fences every older owner, however late its commit comes. An answer that was lost is settled in the same way: the
lane is taken over again, and then the table says whether the commit is there. Commits of other lanes and of other
programs that append do not conflict: deltalake makes the commit again behind theirs.

Above it: the file sink's lane, in its worker thread. Below it: deltalake, an extra.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, SchemaMismatchError
from deltalake.schema import Field, PrimitiveType, Schema

from millstream import codes
from millstream.delta.tables import ABSENT, FAILURES, address_of, error_of, options_of
from millstream.durable import step
from millstream.errors import DamageError, FencedError, MillstreamError, RetryLaterError, UserError
from millstream.objects.settings import ObjectStore, is_url
from millstream.record import Position
from millstream_writer.connector import SinkOwner
from millstream_writer.sinks.delta.connector import DeltaSink
from millstream_writer.sinks.delta.rows import TableRows, rows_of
from millstream_writer.sinks.kept import Kept, fenced

FRAME = "millstreamFrame"
"""Of a commit's information, for people and for the check of a target that is ahead: the frame with the last record."""
_CONFLICTS_MAX = 20
"""How often a commit is repeated at once, when others have changed the table."""
_HISTORY = 500
"""Commits that are looked at for the name of a frame."""
_ANOTHER_RUN = "another run"
_log = logging.getLogger(__name__)


class Fault(NamedTuple):
    """What of a table does not fit the settings."""

    loc: tuple[str | int, ...]
    what: str
    expected: str


class LaneTable:
    """One lane's access to the table, under one epoch. Blocking; used by one thread."""

    def __init__(self, settings: DeltaSink, rows: TableRows, owner: SinkOwner) -> None:
        """Raises `UserError` for credentials that are not there."""
        self._settings = settings
        self._schema = rows.schema
        self._owner = owner
        self._address = address_of(settings.path, owner.base_dir)
        self._options = options_of(settings.path, settings.store or ObjectStore(), owner.base_dir, owner.where)
        self._application = f"millstream/{owner.pipeline}/{owner.name}"
        self._run = _number(owner.ledger_id)
        self._name = secrets.randbits(62)
        self._table: DeltaTable | None = None
        """In the state from which the next commit is made; None when it has to be read again."""
        self._certain = False
        """The object's state is the one that this owner's last commit has made, so it names this owner."""
        self._position = owner.start
        self._taken_over = False
        self._synced = -1
        """Version up to which a local table is known to be on the disk. Of what others wrote before, nothing is: the
        owner before may have been killed between its last commit and the fsync of it."""

    # Opening: `look`, then `take_over`.

    def look(self) -> Kept | None:
        """How far the lane is by the table, which is created if it does not exist. Raises errors of ours."""
        try:
            table = self._opened()
            kept = self._kept(table)
            if kept is None or kept.position <= self._owner.start:
                return kept and kept._replace(position=self._owner.start)
            return kept._replace(frame=self._frame_of(table, kept.position))
        except FAILURES as error:
            raise self._error(error) from error

    def take_over(self) -> Position:
        """Fence every earlier owner; returns the lane's certain position. Raises errors of ours."""
        for _ in range(_CONFLICTS_MAX):
            try:
                table = self._opened()
                kept = self._kept(table)
                self._check_owner(kept)
                reached = self._owner.start if kept is None else max(self._owner.start, kept.position)
                with step("delta_sink.take_over", self._owner.lane.vertex):
                    table.create_write_transaction(
                        [], "append", table.schema(), None, commit_properties=self._properties(reached, "")
                    )
                # That does not move the object on; what lands meanwhile is seen, too.
                table.update_incremental()
                if not self._is_ours(table):
                    self._table = None
                    continue
                self._make_durable(table)
            except CommitFailedError:
                self._table = None
                continue
            except FAILURES as error:
                self._table = None
                raise self._error(error) from error
            self._taken_over = self._certain = True
            self._position = reached
            return reached
        raise self._busy()

    # Writing.

    def begin(self, extension: str) -> list[bytes]:
        """The rows of a commit, in memory."""
        return []

    def append(self, file: list[bytes], data: bytes, partition: str) -> int:
        """Keep it until the commit."""
        file.append(data)
        return len(data)

    def finish(self, file: list[bytes], after: Position, end: Position, extension: str, frame: str) -> None:
        """Commit the rows and the position behind them. After `RetryLaterError` it may be called again."""
        for _ in range(_CONFLICTS_MAX):
            try:
                if self._table is None or not (self._certain or self._is_ours(self._table)):
                    # What became of the last commit is not known.
                    self._table = None
                    reached = self.take_over()
                    if reached >= end and not self._owner.fallback:
                        return
                self._commit(rows_of(file), max(end, self._position), frame)
                return
            except CommitFailedError:
                self._table = None
            except SchemaMismatchError as error:
                self._table = None
                raise UserError(
                    codes.TARGET_UNFIT,
                    f"{self._owner.where}: the Delta table {self._settings.path} was changed: {error}",
                ) from error
            except FAILURES as error:
                self._table = None
                raise self._error(error) from error
        raise self._busy()

    def discard(self, file: list[bytes]) -> None:
        """It is in memory alone."""

    def close(self) -> None:
        """There is no connection to close."""

    # Their parts.

    def _commit(self, rows: pa.RecordBatchReader, end: Position, frame: str) -> None:
        """One commit: the rows, and the position behind them."""
        table = self._table
        assert table is not None, "the lane has been taken over"
        lacking = {field.name for field in self._schema} != {field.name for field in table.schema().fields}
        before = table.version()
        with step("delta_sink.commit", self._owner.lane.vertex):
            write_deltalake(
                table,
                rows,
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
            "owner": self._name,
            "sequence": position.sequence,
            "index": position.record_index,
        }
        names = [Transaction(f"{self._application}/{part}", number) for part, number in said.items()]
        metadata = {"millstreamLane": self._application, FRAME: frame, "millstreamPosition": list(position)}
        return CommitProperties(app_transactions=names, custom_metadata=metadata)

    def _opened(self) -> DeltaTable:
        """The table in its newest state, which fits."""
        if self._table is None:
            try:
                table = DeltaTable(self._address, storage_options=self._options)
            except ABSENT:
                table = self._created()
            faults = list(faults_of(table, self._schema, self._settings))
            if faults:
                raise UserError(
                    codes.TARGET_UNFIT,
                    f"{self._owner.where}: the Delta table {self._settings.path} does not fit: "
                    + "; ".join(f"{fault.what} (expected: {fault.expected})" for fault in faults),
                )
            self._table = table
        return self._table

    def _created(self) -> DeltaTable:
        """A table without rows, made by this lane or another one."""
        try:
            with step("delta_sink.create", self._owner.lane.vertex):
                table = DeltaTable.create(
                    self._address,
                    Schema.from_arrow(self._schema),
                    mode="error",
                    partition_by=list(self._settings.partition_by),
                    storage_options=self._options,
                )
            self._make_durable(table)
            return table
        except FAILURES as error:
            try:
                # Another lane may have been faster.
                return DeltaTable(self._address, storage_options=self._options)
            except ABSENT:
                raise error from None

    def _kept(self, table: DeltaTable) -> Kept | None:
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
        return Kept(name, epoch, str(owner), Position(sequence, index), "")

    def _check_owner(self, kept: Kept | None) -> None:
        """Raises where the lane is no longer this owner's. The first time, `check_kept` has looked at the rest."""
        owner = self._owner
        if kept is None:
            if self._taken_over:
                raise DamageError(
                    codes.TARGET_POSITION_LOST,
                    f"{owner.where}: the lane has written to {self._settings.path} up to sequence "
                    f"{self._position.sequence}, but the table no longer records that: it was removed or replaced. "
                    "Nothing was written now. Restore the table; or start the pipeline again, and the lane "
                    "continues after its mark in the existing table",
                )
            return
        if kept.owner == str(self._name):
            return
        if self._taken_over or kept.epoch >= owner.epoch or kept.run == _ANOTHER_RUN:
            raise self._fenced()

    def _is_ours(self, table: DeltaTable) -> bool:
        """Whether the state that the object is in says that this owner has the lane."""
        return table.transaction_version(f"{self._application}/owner") == self._name

    def _frame_of(self, table: DeltaTable, position: Position) -> str:
        """Name of the frame with the lane's last record; empty where the history does not go back to it."""
        for commit in table.history(_HISTORY):
            if commit.get("millstreamLane") == self._application and commit.get(FRAME):
                at = commit.get("millstreamPosition")
                return str(commit[FRAME]) if at == list(position) else ""
        return ""

    def _make_durable(self, table: DeltaTable) -> None:
        """Have the disk hold a local table up to the version of `table`: deltalake does not fsync."""
        if is_url(self._settings.path):
            return
        root = Path(self._address)
        paths = {root / "_delta_log", root, root.parent}
        version = table.version()
        for log in (root / "_delta_log" / f"{number:020}.json" for number in range(self._synced + 1, version + 1)):
            if not log.exists():
                # An old one, which a checkpoint has replaced.
                continue
            paths.add(log)
            for line in log.read_bytes().splitlines():
                added = json.loads(line).get("add")
                file = root / unquote(added["path"]) if added is not None else None
                # One that was compacted and removed since needs nothing.
                if file is not None and file.exists():
                    paths |= {file, *(parent for parent in file.parents if parent.is_relative_to(root))}
        # Files first, then the directories that name them, from below.
        for path in sorted(paths, key=lambda path: (path.is_dir(), -len(path.parts))):
            _fsync(path)
        self._synced = version

    @property
    def remedy(self) -> str:
        """How a user lets a lane begin without what is kept of it."""
        return f"move the table {self._settings.path} away, or name another one in `path`"

    @property
    def target(self) -> str:
        """For messages."""
        return f"the Delta table {self._settings.path}"

    def _fenced(self) -> FencedError:
        return fenced(self._owner, self.target)

    def _busy(self) -> RetryLaterError:
        what = f"{self._owner.where}: other writers changed {self.target} each time the lane tried to commit"
        return RetryLaterError(codes.TARGET_AWAY, what)

    def _error(self, error: BaseException) -> MillstreamError:
        return error_of(error, self._settings.path, self._owner.where)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _number(text: str) -> int:
    """Of 62 bits, for a name: versions of transactions are numbers."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 2


def faults_of(table: DeltaTable, schema: pa.Schema, settings: DeltaSink) -> Iterator[Fault]:
    """What of the table does not fit."""
    there = {field.name: field for field in table.schema().fields}
    wanted = {field.name: field for field in Schema.from_arrow(schema).fields}
    for name, field in wanted.items():
        loc = _place_of(name, settings)
        if name not in there:
            if settings.schema_mode == "strict":
                yield Fault(loc, f"the table has no column `{name}`", "`schemaMode: merge`, or a column that it has")
        elif there[name].type != field.type:
            what = f"column `{name}` of the table has the type {_type(there[name])}"
            yield Fault(loc, what, f"a column of the type {_type(field)}")
        elif field.nullable and not there[name].nullable:
            yield Fault(loc, f"column `{name}` of the table takes no nulls", "a column that accepts nulls")
    for name, field in there.items():
        if name not in wanted and not field.nullable:
            yield Fault(("columns",), f"column `{name}` of the table takes no nulls", f"`{name}` among `columns`")
    partitions = list(table.metadata().partition_columns)
    if partitions != list(settings.partition_by):
        what = f"the table is partitioned by {', '.join(partitions) or 'nothing'}"
        yield Fault(("partitionBy",), what, f"`partitionBy: [{', '.join(partitions)}]`")


def _place_of(name: str, settings: DeltaSink) -> tuple[str | int, ...]:
    for index, column in enumerate(settings.columns):
        if column.name == name:
            return ("columns", index, "type")
    return ("columns",) if name not in settings.partition_by else ("partitionBy",)


def _type(field: Field) -> str:
    return field.type.type if isinstance(field.type, PrimitiveType) else str(field.type)


def look(settings: DeltaSink, base_dir: Path) -> Sequence[Fault]:
    """What of a table that exists does not fit. Raises errors of ours where it cannot be reached."""
    options = options_of(settings.path, settings.store or ObjectStore(), base_dir, "validate")
    try:
        table = DeltaTable(address_of(settings.path, base_dir), storage_options=options)
    except ABSENT:
        return ()
    except FAILURES as error:
        raise error_of(error, settings.path, "validate") from error
    return list(faults_of(table, TableRows(settings).schema, settings))
