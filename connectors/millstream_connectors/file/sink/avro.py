"""Avro for the file sink. Imported only when a sink needs it, because fastavro is an extra of the distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastavro.schema import parse_schema
from fastavro.write import Writer

from millstream.frame import Frame
from millstream_connectors.file.sink.formats import CaughtBytes, Cell, StorableRows, convert_cells
from millstream_connectors.shared.columns import Column

_TYPES: Mapping[str, object] = {
    "string": "string",
    "int": "long",
    "float": "double",
    "bool": "boolean",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}
_Row = dict[str, Cell | bytes]


class Avro:
    """Members of a JSON object as fields; without declared columns, one field `value` of bytes."""

    extension = "avro"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        fields: list[dict[str, object]] = [{"name": "value", "type": "bytes"}]
        if columns:
            fields = [{"name": column.name, "type": ["null", _TYPES[column.type]]} for column in columns]
        self._schema: Any = parse_schema({"type": "record", "name": "record", "fields": fields})

    def convert(self, frame: Frame) -> StorableRows[Sequence[_Row]]:
        values = frame.values()
        size = sum(map(len, values))
        if not self._columns:
            return StorableRows(range(len(values)), [{"value": value} for value in values], size)
        cells, rows, failures = convert_cells(values, self._columns)
        names = [column.name for column in self._columns]
        return StorableRows(rows, [dict(zip(names, row, strict=True)) for row in cells], size, failures)

    def begin(self) -> AvroBody:
        return AvroBody(self._schema)


class AvroBody:
    """One Avro file, in blocks."""

    def __init__(self, schema: Any) -> None:
        self._caught = CaughtBytes()
        self._writer = Writer(self._caught, schema, codec="deflate")

    def add(self, content: Sequence[_Row], start: int, stop: int) -> bytes:
        for row in content[start:stop]:
            self._writer.write(row)
        return self._caught.take()

    def finish(self) -> bytes:
        self._writer.flush()
        return self._caught.take()
