"""An Iceberg table as the target of one lane's commits: ownership, position and schema.

An Iceberg commit is a list of changes, with requirements that the catalog checks against the table's newest state. A
lane's position and owner are a property of the table, which is part of its state and stays when snapshots expire:

    millstream/<pipeline>/<lane> = {"run": …, "epoch": 3, "owner": …, "sequence": 1200, "index": 0, "frame": …}

Each commit sets the property and adds a snapshot, and requires that the newest snapshot is the one from which the
commit was made. So it is based on the state that named this owner, without any commit in between. That includes commits
of other lanes and of other programs: a commit that lost the race is repeated only after the property has been read
again. Opening a lane adds a snapshot without records, so every commit that an older owner has in flight is refused.

A lost answer needs nothing else. If the commit has landed, the property shows it. If it is still in flight, it has the
same base as the next one, and only one of the two can land.

The data files of a commit are written once, and each attempt refers to them. pyiceberg's own retries of commits are not
used: they would set the property again without checking it.

Above it: the file sink's lane, in its worker thread. Below it: pyiceberg, an extra.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    LongType,
    StringType,
    TimestamptzType,
)

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError
from millstream.json_parser import parse_json
from millstream.record import Position
from millstream_connectors.iceberg.client import ABSENT, CONFLICT, EXISTS, FAILURES, error_of, open_catalog
from millstream_connectors.iceberg.settings import IcebergSink
from millstream_connectors.lake.lane_table import ConflictError, LaneTable, TableField, column_faults
from millstream_connectors.lake.rows import TableRows, rows_of
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.kept import TargetPosition
from millstream_writer.connector import SinkOwner

_TYPES: dict[str, IcebergType] = {
    "string": StringType(),
    "int64": LongType(),
    "double": DoubleType(),
    "bool": BooleanType(),
    "binary": BinaryType(),
    "timestamp[us, tz=UTC]": TimestamptzType(),
}
_CREATED = {
    # A commit lists all manifests and all snapshots: without these two, small commits make a table slow.
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}
"""Properties of tables that the sink creates."""
_log = logging.getLogger(__name__)


class _Written(NamedTuple):
    """The data files of a commit."""

    file: list[bytes]
    """The rows that it was made from: the object itself."""
    schema_id: int
    spec_id: int
    files: Sequence[DataFile]


class IcebergLaneTable(LaneTable[Table]):
    """See `LaneTable`."""

    def __init__(self, settings: IcebergSink, rows: TableRows, owner: SinkOwner) -> None:
        super().__init__(owner, f"the Iceberg table {settings.table}")
        self._settings = settings
        self._schema = rows.schema
        self._catalog: Catalog | None = None
        self._written: _Written | None = None
        self._refused: list[tuple[int, str]] = []
        """Files of refused commits, with the snapshot; removed when another commit has landed."""

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    # See `LaneTable`.

    @property
    def remedy(self) -> str:
        owner, table = self._owner, self._settings.table
        if owner.must_be_known:
            position = self._written_position(TargetPosition(owner.ledger_id, 0, "", owner.mark, ""))
            return f"name another table in `table`, or set the property {self._application} of {table} to `{position}`"
        return (
            f"rename or drop the table {table}, name another one in `table`, or remove the table's property "
            f"{self._application}"
        )

    def _opened(self) -> Table:
        if self._table is None:
            if self._catalog is None:
                self._catalog = self._open_catalog()
            try:
                table = self._catalog.load_table(self._settings.table)
            except ABSENT:
                if self._must_exist:
                    raise self._lost() from None
                table = self._created(self._catalog)
            self._check_fit(faults_of(table, self._schema, self._settings))
            if not {field.name for field in table.schema().fields}.issuperset(self._schema.names):
                self._add_columns(table)
            self._table = table
        return self._table

    def _open_catalog(self) -> Catalog:
        settings, owner = self._settings, self._owner
        with step("iceberg_sink.open_catalog", owner.lane.vertex):
            return open_catalog(settings.catalog, settings.store, owner.base_dir, owner.where, create=True)

    def _created(self, catalog: Catalog) -> Table:
        """A table without rows, created by this lane or another one."""
        name, vertex, partitions = self._settings.table, self._owner.lane.vertex, self._settings.partitions
        with suppress(*EXISTS), step("iceberg_sink.create_namespace", vertex):
            catalog.create_namespace(name.rpartition(".")[0])
        creating = catalog.create_table_transaction(name, self._schema, properties=_CREATED)
        if partitions:
            with creating.update_spec() as spec:
                for column, transform in partitions:
                    spec.add_field(column, transform, _field_name(column, transform))
        with suppress(*EXISTS), step("iceberg_sink.create", vertex):
            creating.commit_transaction()
        return catalog.load_table(name)

    def _add_columns(self, table: Table) -> None:
        """Add the columns that the table lacks."""
        with step("iceberg_sink.add_columns", self._owner.lane.vertex), table.update_schema() as update:
            update.union_by_name(self._schema)

    def _kept(self, table: Table) -> TargetPosition | None:
        text = table.properties.get(self._application)
        if text is None:
            return None
        try:
            said = parse_json(text)
            position = Position(int(said["sequence"]), int(said["index"]))
            return TargetPosition(
                str(said["run"]), int(said["epoch"]), str(said["owner"]), position, str(said["frame"])
            )
        except (ValueError, LookupError, TypeError) as error:
            raise DamageError(
                codes.TARGET_POSITION_LOST,
                f"{self._owner.where}: the property {self._application} of {self.target} is not a position: "
                f"{text[:200]!r}. Nothing was written now. Put it back as it was; or see to the records that are in "
                f"the table, and then start over: {self.remedy}",
            ) from error

    def _claim(self, table: Table, position: Position) -> None:
        kept = self._kept(table)
        frame = kept.frame if kept is not None and kept.position == position else ""
        with step("iceberg_sink.take_over", self._owner.lane.vertex):
            self._put(table, (), position, frame)

    def _regain(self) -> Position:
        with self._errors():
            kept = self._kept(self._opened())
            self._check_owner(kept)
        assert kept is not None, "it was taken over, so it exists"
        if kept.position > self._position:
            # A commit that was reported as refused has landed.
            self._refused.clear()
        self._position = kept.position
        return kept.position

    def _commit(self, file: list[bytes], end: Position, frame: str) -> None:
        assert self._table is not None, "the lane is taken over"
        self._data_files(self._table, file)
        # Other lanes have committed while files were written.
        self._table = None
        if self._regain() < end or self._owner.fallback:
            table = self._opened()
            files = self._data_files(table, file)
            with step("iceberg_sink.commit", self._owner.lane.vertex):
                self._put(table, files, max(end, self._position), frame)
            self._position = max(end, self._position)
        self._written = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except CONFLICT as error:
            raise ConflictError from error
        except FAILURES as error:
            raise error_of(error, self._settings, self._owner.where) from error

    # Parts of commits.

    def _data_files(self, table: Table, file: list[bytes]) -> Sequence[DataFile]:
        """Written at the first attempt; again only if the table's schema or partitions have changed since."""
        metadata = table.metadata
        written = self._written
        if (
            written is None
            or written.file is not file
            or (written.schema_id, written.spec_id) != (metadata.current_schema_id, metadata.default_spec_id)
        ):
            rows = rows_of(file).read_all()
            with step("iceberg_sink.write", self._owner.lane.vertex):
                files = list(_dataframe_to_data_files(metadata, rows, table.io)) if rows.num_rows else []
            written = self._written = _Written(file, metadata.current_schema_id, metadata.default_spec_id, files)
        return written.files

    @staticmethod
    def _written_position(kept: TargetPosition) -> str:
        """The property of the table with a position."""
        sequence, index = kept.position
        said = {"run": kept.run, "epoch": kept.epoch, "owner": kept.owner, "sequence": sequence, "index": index}
        return json.dumps({**said, "frame": kept.frame})

    def _put(self, table: Table, files: Sequence[DataFile], position: Position, frame: str) -> None:
        """One commit, based on the state of `table`, which then has the new state."""
        owner = self._owner
        said = self._written_position(TargetPosition(owner.ledger_id, owner.epoch, self.name, position, frame))
        transaction = table.transaction()
        transaction.set_properties({self._application: said})
        shown = {"millstream-lane": self._application, "millstream-position": f"{position.sequence}/{position[1]}"}
        snapshot = transaction.update_snapshot(snapshot_properties=shown)
        merges = table.properties.get(TableProperties.MANIFEST_MERGE_ENABLED) == "true"
        producer: Any = snapshot.merge_append() if merges else snapshot.fast_append()
        for file in files:
            producer.append_data_file(file)
        producer.commit()
        requirements = (*transaction._requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
        try:
            table._do_commit(updates=transaction._updates, requirements=requirements)
        except CONFLICT:
            written = [*producer._written_manifests, *producer._written_manifest_lists]
            self._refused += [(producer.snapshot_id, path) for path in written]
            raise
        self._remove_refused(table)

    def _remove_refused(self, table: Table) -> None:
        """Remove files of commits that cannot land any more, except those that landed although the answer said
        otherwise."""
        landed = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        for snapshot_id, path in self._refused:
            if snapshot_id in landed:
                continue
            try:
                table.io.delete(path)
            except OSError as error:
                _log.info("%s: %s was not removed: %s", self._owner.where, path, error)
        self._refused.clear()


def _field_name(column: str, transform: str) -> str:
    return column if transform == "identity" else f"{column}_{transform}"


def faults_of(table: Table, schema: pa.Schema, settings: IcebergSink) -> Iterator[Fault]:
    """What in the table does not fit the settings."""
    if TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL in table.properties:
        what = f"its property {TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL} names code, which is never loaded"
        yield Fault(("table",), what, "a table without this property")
    wanted = {field.name: TableField(str(_TYPES[str(field.type)]), field.nullable) for field in schema}
    there = {field.name: TableField(str(field.field_type), not field.required) for field in table.schema().fields}
    yield from column_faults(wanted, there, settings)
    partitions = _partitions(table)
    if settings.partition_by and partitions != list(settings.partitions):
        said = [column if transform == "identity" else f"{transform}({column})" for column, transform in partitions]
        what = f"the table is partitioned by {', '.join(said) or 'nothing'}"
        yield Fault(("partitionBy",), what, f"`partitionBy: [{', '.join(said)}]`, or none")
    for column, _ in partitions:
        if column not in schema.names and not settings.partition_by:
            what = f"the table is partitioned by {column}, which the sink does not write"
            yield Fault(("columns",), what, f"`{column}` among `columns`, or in `partitionBy`")


def _partitions(table: Table) -> list[tuple[str, str]]:
    schema: Schema = table.schema()
    return [(schema.find_column_name(field.source_id) or "?", str(field.transform)) for field in table.spec().fields]


def look(settings: IcebergSink, base_dir: Path) -> Sequence[Fault]:
    """What in an existing table does not fit the settings. Raises Millstream errors if it cannot be reached."""
    catalog = settings.catalog
    if catalog.sqlite is not None and not (base_dir / catalog.sqlite).exists():
        # The sink creates the table.
        return ()
    with translating(FAILURES, partial(error_of, settings=settings, where="validate")):
        try:
            with open_catalog(catalog, settings.store, base_dir, "validate", create=False) as opened:
                table = opened.load_table(settings.table)
                return list(faults_of(table, TableRows(settings.columns, settings.of_time).schema, settings))
        except ABSENT:
            return ()
