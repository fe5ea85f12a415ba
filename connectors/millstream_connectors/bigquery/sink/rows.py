"""Records as BigQuery rows: messages whose type is derived from the table's schema. Pure.

Each column of the table becomes a field of the message, with the type that BigQuery's documentation prefers. A value
that does not fit its column is refused here, before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Any, NamedTuple

from google.cloud.bigquery_storage_v1 import types
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from millstream.exact_json import double_of, text_of
from millstream.record import Position
from millstream_connectors.bigquery.settings import BigQuerySink
from millstream_connectors.shared.converting import RefusedRecordError, convert_each
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.kept import ConvertedRecords
from millstream_connectors.shared.requests import requests_of
from millstream_connectors.shared.tables.rows import Absent, RowFormat
from millstream_writer.sink import SinkFailure, SinkFrame, exact_position

MISFIT = "value does not fit the column"
TOO_LARGE = "record is too large for BigQuery"
REQUEST_BYTES_MAX = 10 * 1000 * 1000
"""Maximum size of an AppendRows request, as BigQuery documents it."""
ROW_BYTES_MAX = REQUEST_BYTES_MAX - 256 * 1024
"""Maximum size of the rows in a request: the rest is for the schema and the names."""

_Field = descriptor_pb2.FieldDescriptorProto
_Type = types.TableFieldSchema.Type
_Mode = types.TableFieldSchema.Mode
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class TableRow(NamedTuple):
    """The row of one record."""

    data: bytes
    end: Position
    """Position of the lane after the record."""
    frame: str
    """Name of the record's frame."""

    @property
    def size(self) -> int:
        """Bytes in a request. Each row has a tag of one byte and a length of up to four."""
        return len(self.data) + 5


class RowType:
    """The message type of a table's rows."""

    def __init__(self, schema: Any, names: Sequence[str]) -> None:
        """`names`: the columns for which rows have a value. Raises `ValueError` for a column type that messages cannot
        represent."""
        known = {field.name.lower(): field for field in schema.fields}
        self._fields = [known[name.lower()] for name in names]
        self.descriptor = descriptor_pb2.DescriptorProto(name="TableRow")
        for number, field in enumerate(self._fields, 1):
            _add(self.descriptor, field, number)
        file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package="rows", syntax="proto2")
        file.message_type.append(self.descriptor)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self._message: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("rows.TableRow"))

    def encode(self, cells: Sequence[Any]) -> bytes:
        """The message with these values. Raises `ValueError` if one does not fit its column."""
        values = {field.name: _value(field, value) for field, value in zip(self._fields, cells, strict=True)}
        return bytes(self._message(**values).SerializeToString())

    def encode_all(self, columns: Sequence[Sequence[Any]]) -> list[bytes] | None:
        """The messages of many rows, column by column, with the same result; None if a value may not fit."""
        try:
            made = [
                column if _fits(field, column) else [_value(field, value) for value in column]
                for field, column in zip(self._fields, columns, strict=True)
            ]
            names, message = [field.name for field in self._fields], self._message
            rows = (dict(zip(names, cells, strict=True)) for cells in zip(*made, strict=True))
            return [message(**row).SerializeToString() for row in rows]
        except ValueError:
            return None


def _fits(field: Any, column: Sequence[Any]) -> bool:
    """Whether all values are of the type that messages have for this column, so that none has to be converted."""
    if field.mode == _Mode.REPEATED or field.max_length:
        return False
    kinds = set(map(type, column))
    if field.mode != _Mode.REQUIRED:
        kinds.discard(type(None))
    return kinds <= _PLAIN.get(field.type_, frozenset())


def column_faults(schema: Any, settings: BigQuerySink) -> list[Fault]:
    """Mismatches between the table's schema and the settings."""
    known = {field.name.lower(): field for field in schema.fields}
    faults: list[Fault] = []
    written = [column.name.lower() for column in settings.rows.row]
    for index, name in enumerate(written):
        loc = ("columns", index, "name") if settings.columns else ("table",)
        if name not in known:
            what = f"the table {settings.table} has no column `{settings.rows.row[index].name}`"
            faults.append(Fault(loc, what, f"one of {', '.join(field.name for field in schema.fields)}"))
        elif not _is_known(known[name]):
            what = f"the sink does not write column `{known[name].name}`, of the type {_Type(known[name].type_).name}"
            faults.append(Fault(loc, what, "another type, and names of ASCII letters, digits and `_`"))
    for name, field in known.items():
        if field.mode == _Mode.REQUIRED and name not in written and not field.default_value_expression:
            what = f"the table {settings.table} requires a value in `{field.name}`, which `columns` does not have"
            faults.append(Fault(("table",), what, f"a column `{field.name}`"))
    return faults


class BigQueryFormat(RowFormat[bytes]):
    """The rows of one table."""

    def __init__(self, settings: BigQuerySink, row_type: RowType) -> None:
        super().__init__(settings.rows)
        self.row_type = row_type

    def rows_of(self, item: SinkFrame) -> ConvertedRecords[TableRow]:
        """The rows of a frame's records, each with the lane's position after it."""
        found = self.convert(item)
        indexes = item.indexes()
        made = [
            TableRow(data, exact_position(item, indexes[row] + 1), item.name)
            for row, data in zip(found.rows, found.made, strict=True)
        ]
        return ConvertedRecords(found.rows, made, found.failures)

    def made(
        self, rows: Sequence[int], columns: Sequence[Sequence[Any]], deletes: Sequence[bool], absent: Absent
    ) -> tuple[Sequence[int], Sequence[bytes], Sequence[SinkFailure]]:
        together = self.row_type.encode_all(columns)
        if together is not None and max(map(len, together), default=0) <= ROW_BYTES_MAX:
            return rows, together, ()
        records = ((cells,) for cells in zip(*columns, strict=True))
        found = convert_each(records, self._encoded, misfit=MISFIT, shows_value=True, indexes=rows)
        return found.rows, found.made, found.failures

    def _encoded(self, cells: Sequence[Any]) -> bytes:
        data = self.row_type.encode(cells)
        if len(data) > ROW_BYTES_MAX:
            raise RefusedRecordError(TOO_LARGE, f"it has {len(data)} bytes; the limit is {ROW_BYTES_MAX}")
        return data


def in_requests(rows: Sequence[TableRow]) -> list[list[TableRow]]:
    """The rows, in order, with as many as fit into each request."""
    return requests_of(rows, attrgetter("size"), ROW_BYTES_MAX)


def _is_known(field: Any) -> bool:
    if _NAME.fullmatch(field.name) is None:
        return False
    if field.type_ == _Type.STRUCT:
        return all(_is_known(one) for one in field.fields)
    return field.type_ in _SCALARS


def _add(into: descriptor_pb2.DescriptorProto, field: Any, number: int) -> None:
    made = into.field.add(name=field.name, number=number)
    made.label = _Field.LABEL_REPEATED if field.mode == _Mode.REPEATED else _Field.LABEL_OPTIONAL
    if field.type_ == _Type.STRUCT:
        nested = into.nested_type.add(name=f"M{number}")
        for place, one in enumerate(field.fields, 1):
            _add(nested, one, place)
        made.type = _Field.TYPE_MESSAGE
        made.type_name = nested.name
    else:
        made.type = _SCALARS[field.type_][0]


def _value(field: Any, value: Any) -> Any:
    """The value of a field; None if the field remains unset."""
    if value is None:
        if field.mode == _Mode.REQUIRED:
            raise ValueError(f"`{field.name}` is null, which the table does not allow")
        return None
    if field.mode != _Mode.REPEATED:
        return _single(field, value)
    if not isinstance(value, list):
        raise ValueError(f"`{field.name}` is not a list")
    if None in value:
        raise ValueError(f"`{field.name}` has a null in its list, which BigQuery does not allow")
    return [_single(field, one) for one in value]


def _single(field: Any, value: Any) -> Any:
    if field.type_ != _Type.STRUCT:
        return _scalar(field, value)
    if not isinstance(value, dict):
        raise ValueError(f"`{field.name}` is not an object")
    members = ((one.name, _value(one, value.get(one.name))) for one in field.fields)
    return {name: found for name, found in members if found is not None}


def _scalar(field: Any, value: Any) -> Any:
    try:
        made = _SCALARS[field.type_][1](value)
    except (ValueError, TypeError, ArithmeticError):
        shown = (text_of(value) if not isinstance(value, bytes | datetime) else str(value))[:80]
        kind = _Type(field.type_).name
        raise ValueError(f"`{field.name}` is {shown}, which is not a value of the type {kind}") from None
    if field.max_length and len(made) > field.max_length:
        raise ValueError(f"`{field.name}` is longer than the {field.max_length} that the table allows")
    return made


def _text(value: Any) -> str:
    if isinstance(value, str):
        value.encode()
        return value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return text_of(value)


def _whole(value: Any) -> int:
    if isinstance(value, str):
        value = int(value)
    if isinstance(value, Decimal) and value.adjusted() < 20 and value == value.to_integral_value():
        value = int(value)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError
    return value


def _float(value: Any) -> float:
    if isinstance(value, str):
        value = Decimal(value)
        if not value.is_finite():
            return float(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError
    return double_of(value)


def _bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _timestamp(value: Any) -> int:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _date(value: Any) -> int:
    if isinstance(value, datetime):
        return value.date().toordinal() - _EPOCH_DAY
    return date.fromisoformat(value).toordinal() - _EPOCH_DAY


def _datetime(value: Any) -> str:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if moment.tzinfo is not None:
        # A column without a time zone contains UTC.
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat()


def _time(value: Any) -> str:
    moment = time.fromisoformat(value)
    if moment.tzinfo is not None:
        raise ValueError
    return moment.isoformat()


def _decimal(whole: int, digits: int) -> Callable[[Any], str]:
    """The conversion to a type with this many digits before and after the decimal point."""

    def made(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise ValueError
        try:
            number = Decimal(value)
        except InvalidOperation:
            raise ValueError from None
        sign, figures, exponent = number.as_tuple()
        if not isinstance(exponent, int) or number.adjusted() >= whole:
            raise ValueError
        if (beyond := -exponent - digits) > 0:
            # Calculating with the number might round it.
            if any(figures[-beyond:]):
                raise ValueError
            number = Decimal((sign, figures[:-beyond], -digits))
        return f"{number:f}"

    return made


def _plain_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return _text(value)


_SCALARS: dict[int, tuple[Any, Callable[[Any], Any]]] = {
    _Type.STRING: (_Field.TYPE_STRING, _text),
    _Type.INT64: (_Field.TYPE_INT64, _whole),
    _Type.DOUBLE: (_Field.TYPE_DOUBLE, _float),
    _Type.BOOL: (_Field.TYPE_BOOL, _bool),
    _Type.BYTES: (_Field.TYPE_BYTES, _bytes),
    _Type.TIMESTAMP: (_Field.TYPE_INT64, _timestamp),
    _Type.DATE: (_Field.TYPE_INT32, _date),
    _Type.TIME: (_Field.TYPE_STRING, _time),
    _Type.DATETIME: (_Field.TYPE_STRING, _datetime),
    _Type.GEOGRAPHY: (_Field.TYPE_STRING, _plain_text),
    _Type.NUMERIC: (_Field.TYPE_STRING, _decimal(29, 9)),
    _Type.BIGNUMERIC: (_Field.TYPE_STRING, _decimal(38, 38)),
    _Type.INTERVAL: (_Field.TYPE_STRING, _plain_text),
    _Type.JSON: (_Field.TYPE_STRING, text_of),
}
"""For each column type: the field's type in messages, and the conversion of a value."""
_PLAIN: dict[int, frozenset[type]] = {
    # Messages refuse whole numbers and texts that do not fit.
    _Type.STRING: frozenset((str,)),
    _Type.INT64: frozenset((int,)),
    _Type.BOOL: frozenset((bool,)),
}
"""Types of values that need no conversion."""
