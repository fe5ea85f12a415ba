"""Decodes values into the fields that a query needs, inside Spark's Python workers, as Spark's readers do. Pure.

    values ─► fast: a whole batch at once, by pyarrow ─► columns
                └─► refused values, in ever smaller parts ─► one by one
    Arrow columns in place of JSON ─► those of the declared types, as they are
                                      └─► the others, from their JSON

A value, or a field of one, that does not have the declared type becomes NULL, as in Spark's PERMISSIVE mode; other
values are not affected. A decoder counts these values.
"""

from __future__ import annotations

import base64
import csv
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json

from millstream.exact_json import parse, text_of
from millstream.json_parser import parse_json
from millstream_reduce.batches import whole
from millstream_udf.json_rows import json_column

_SPECIAL_NUMBERS = {
    "NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf,
    "INF": math.inf, "+INF": math.inf, "-INF": -math.inf,
}  # fmt: skip
_SECOND_US = 1_000_000


class Malformed(ValueError):
    """Not a value of the declared type."""


class Text(str):
    """A text that stands for a value of any type, as in CSV."""

    __slots__ = ()


def from_text(text: str, kind: pa.DataType) -> Any:
    """The argument of `convert` for a field of a line: empty is NULL, also for texts."""
    if not text:
        return None
    return text if pa.types.is_string(kind) else Text(text)


def convert(value: Any, kind: pa.DataType) -> Any:
    """A Python value of the declared type that pyarrow accepts. Raises `Malformed`."""
    if value is None:
        return None
    conversion = _CONVERSIONS.get(kind.id)
    if conversion is None:
        raise Malformed(f"{kind} cannot be read")
    try:
        return conversion(value, kind)
    except (ValueError, OverflowError, InvalidOperation, ArithmeticError) as error:
        raise Malformed(str(error)) from error


def _struct(value: Any, kind: Any) -> dict[str, Any]:
    _required(value, dict)
    return {field.name: convert(value.get(field.name), field.type) for field in kind}


def _map(value: Any, kind: Any) -> list[tuple[Any, Any]]:
    items = _required(value, dict).items()
    return [(convert(name, kind.key_type), convert(item, kind.item_type)) for name, item in items]


def _list(value: Any, kind: Any) -> list[Any]:
    return [convert(item, kind.value_type) for item in _required(value, list)]


def _required(value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        raise Malformed(f"{type(value).__name__} is not {wanted.__name__}")
    return value


def _text(value: Any, _: Any) -> str:
    if isinstance(value, str):
        # A lone surrogate, which JSON can contain, is not text.
        value.encode()
        return value
    if isinstance(value, (datetime, date, Decimal)):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    return text_of(value)


def _boolean(value: Any, _: Any) -> bool:
    if isinstance(value, Text):
        named = {"true": True, "false": False}.get(value.lower())
        if named is None:
            raise Malformed("not a boolean")
        return named
    return bool(_required(value, bool))


def _integer(value: Any, kind: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, Text)):
        raise Malformed("not an integer")
    number = int(value)
    if not -(1 << kind.bit_width - 1) <= number < 1 << kind.bit_width - 1:
        raise Malformed("out of range")
    return number


def _number(value: Any, _: Any) -> float:
    if isinstance(value, str):
        if value in _SPECIAL_NUMBERS:
            return _SPECIAL_NUMBERS[value]
        if not isinstance(value, Text):
            raise Malformed("not a number")
    elif isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise Malformed("not a number")
    return float(value)


def _decimal(value: Any, kind: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise Malformed("not a number")
    with localcontext(prec=76):
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), rounding=ROUND_HALF_UP)
        if len(number.as_tuple().digits) > kind.precision or not number.is_finite():
            raise Malformed("out of range")
        return number


def _timestamp(value: Any, kind: Any) -> int:
    """Microseconds."""
    if isinstance(value, int) and not isinstance(value, bool) and kind.tz is not None:
        moment_us = value * _SECOND_US
    else:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(_required(value, str))
        if kind.tz is None and moment.tzinfo is not None:
            raise Malformed("a time of day everywhere has no zone")
        difference = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        moment_us = (difference.days * 86400 + difference.seconds) * _SECOND_US + difference.microseconds
    if not -(1 << 63) <= moment_us < 1 << 63:
        raise Malformed("out of range")
    return moment_us


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _date(value: Any, _: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    text = _required(value, str)
    try:
        return date.fromisoformat(text)
    except ValueError:
        return datetime.fromisoformat(text).date()


def _binary(value: Any, _: Any) -> bytes:
    return value if isinstance(value, bytes) else base64.b64decode(_required(value, str), validate=True)


_CONVERSIONS: dict[int, Callable[[Any, Any], Any]] = {
    pa.string().id: _text,
    pa.bool_().id: _boolean,
    **dict.fromkeys((pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id), _integer),
    **dict.fromkeys((pa.float32().id, pa.float64().id), _number),
    pa.decimal128(1).id: _decimal,
    pa.timestamp("us").id: _timestamp,
    pa.date32().id: _date,
    pa.binary().id: _binary,
    pa.struct([]).id: _struct,
    pa.map_(pa.string(), pa.string()).id: _map,
    pa.list_(pa.string()).id: _list,
}
"""By the kinds of types that `columns.arrow_type` returns."""

Array: TypeAlias = Any
"""A pyarrow.Array. Its type stubs know neither the kinds of arrays nor what can be None well enough to be of use."""

_compute: Any = pyarrow.compute
_SPLIT = 8
"""A refused part is divided into this many smaller ones."""
_ONE_BY_ONE = 64
"""Parts of this many values are read one by one."""


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field of the value."""

    name: str
    kind: pa.DataType


@dataclass(frozen=True)
class Decoder(ABC):
    """A decoder of one format. Can be pickled."""

    fields: tuple[Field, ...]
    """Those that are needed."""
    takes_arrow: ClassVar[bool] = False
    """Whether values may be a struct of the columns that stand for them."""

    def decode(self, values: Array) -> tuple[list[Array], int]:
        """A column for each needed field, and the number of malformed values."""
        if (columns := self._fast(values)) is not None:
            return columns, 0
        if len(values) <= _ONE_BY_ONE:
            return _one_by_one(self._rows(values), self.fields)
        step = max(_ONE_BY_ONE, -(-len(values) // _SPLIT))
        parts = [self.decode(values.slice(at, step)) for at in range(0, len(values), step)]
        columns = [pa.concat_arrays([part[index] for part, _ in parts]) for index in range(len(self.fields))]
        return columns, sum(malformed for _, malformed in parts)

    def _fast(self, values: Array) -> list[Array] | None:
        """The columns of all values at once; None if some have to be looked at apart."""
        return None

    @abstractmethod
    def _rows(self, values: Array) -> Iterator[dict[str, Any] | None]:
        """What each value says, for `convert`; None for a malformed one."""


@dataclass(frozen=True)
class JsonDecoder(Decoder):
    """Each value is a JSON object."""

    takes_arrow: ClassVar[bool] = True

    def decode(self, values: Array) -> tuple[list[Array], int]:
        return self._of_columns(values) if pa.types.is_struct(values.type) else super().decode(values)

    def _of_columns(self, values: Array) -> tuple[list[Array], int]:
        """The same as for the JSON objects that the columns stand for."""
        given: dict[str, Array] = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
        found = {field.name: _as_it_is(given.get(field.name), field.kind, len(values)) for field in self.fields}
        others = tuple(field for field in self.fields if found[field.name] is None)
        malformed = 0
        if others:
            names = [field.name for field in others]
            objects = pa.RecordBatch.from_arrays([given[name] for name in names], names=names)
            arrays, malformed = JsonDecoder(others).decode(json_column(objects))
            found |= dict(zip(names, arrays, strict=True))
        return [found[field.name] for field in self.fields], malformed

    def _fast(self, values: Array) -> list[Array] | None:
        # A value that begins with { and ends with } cannot run into its neighbours: }{ is an error inside an object,
        # and so is the newline inside a text. So there is at least one object for each value, and when there are as
        # many as values, each is where it belongs.
        offsets, data = _buffers(values)
        starts, ends = offsets[:-1], offsets[1:]
        if not len(data) or (ends == starts).any():
            return None
        if (data[starts] != ord("{")).any() or (data[ends - 1] != ord("}")).any():
            return None
        text = _compute.binary_join(_as_list(values), b"\n")[0].as_buffer()
        try:
            source: Any = pa.BufferReader(text)
            table = pyarrow.json.read_json(
                source,
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._schema, unexpected_field_behavior="ignore"
                ),
            )
            if table.num_rows != len(values):
                return None
            # Texts are not checked to be UTF-8 while they are read.
            table.validate(full=True)
            return [whole(table.column(field.name)).cast(field.kind) for field in self.fields]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def _rows(self, values: Array) -> Iterator[dict[str, Any] | None]:
        for value in values.to_pylist():
            try:
                row = parse(value, constants=True)
            except ValueError:
                yield None
            else:
                yield row if isinstance(row, dict) else None

    @cached_property
    def _schema(self) -> pa.Schema:
        """Dates are read as texts."""
        return pa.schema([
            (field.name, pa.string() if pa.types.is_date(field.kind) else field.kind) for field in self.fields
        ])  # fmt: skip


@dataclass(frozen=True)
class CsvDecoder(Decoder):
    """Each value is one line; its columns are all declared fields, in order."""

    declared: tuple[Field, ...]
    delimiter: str = ","

    def _fast(self, values: Array) -> list[Array] | None:
        # Without quotes and line ends, and not empty, each value is one line or an error.
        offsets, data = _buffers(values)
        if not len(data) or (offsets[1:] == offsets[:-1]).any() or not self.fields:
            return None
        if np.isin(data[offsets[0] : offsets[-1]], (ord('"'), ord("\n"), ord("\r"))).any():
            return None
        text = _compute.binary_join(_as_list(values), b"\n")[0].as_buffer()
        try:
            source: Any = pa.BufferReader(text)
            table = pyarrow.csv.read_csv(
                source,
                read_options=pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=text.size + 1, column_names=[field.name for field in self.declared]
                ),
                parse_options=pyarrow.csv.ParseOptions(delimiter=self.delimiter),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={field.name: field.kind for field in self.fields},
                    include_columns=[field.name for field in self.fields],
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
            return None
        if table.num_rows != len(values):
            return None
        return [whole(table.column(field.name)) for field in self.fields]

    def _rows(self, values: Array) -> Iterator[dict[str, Any] | None]:
        names = [field.name for field in self.declared]
        kinds = {field.name: field.kind for field in self.fields}
        for value in values.to_pylist():
            try:
                lines = list(csv.reader(io.StringIO(value.decode(), newline=""), delimiter=self.delimiter, strict=True))
            except (ValueError, csv.Error):
                yield None
                continue
            if len(lines) != 1 or len(lines[0]) != len(names):
                yield None
                continue
            yield {
                name: from_text(text, kinds[name]) for name, text in zip(names, lines[0], strict=True) if name in kinds
            }


@dataclass(frozen=True)
class AvroDecoder(Decoder):
    """Each value is a record of the writer's schema, without a header."""

    schema: str
    """The writer's schema, as JSON."""

    def _rows(self, values: Array) -> Iterator[dict[str, Any] | None]:
        # Outside the handler below: an invalid schema is no fault of the values.
        schema = self._parsed
        for value in values.to_pylist():
            stream = io.BytesIO(value)
            try:
                row = fastavro.schemaless_reader(stream, schema, None)
            except Exception:  # noqa: BLE001 - what it raises for bytes that are not a record is not said anywhere
                yield None
                continue
            yield row if isinstance(row, dict) and stream.tell() == len(value) else None

    @cached_property
    def _parsed(self) -> Any:
        return fastavro.parse_schema(parse_json(self.schema))


def _as_it_is(column: Array | None, kind: Any, count: int) -> Array | None:
    """The column of a field that JSON would not change; None if only its JSON tells what becomes of it."""
    if column is None:
        return pa.nulls(count, kind)
    if column.type == kind:
        return column
    if not (pa.types.is_integer(column.type) and (pa.types.is_integer(kind) or pa.types.is_float64(kind))):
        return column.cast(kind) if pa.types.is_large_string(column.type) and pa.types.is_string(kind) else None
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return None


def _one_by_one(rows: Iterator[dict[str, Any] | None], fields: Sequence[Field]) -> tuple[list[Array], int]:
    columns: list[list[Any]] = [[] for _ in fields]
    malformed = 0
    for row in rows:
        whole = row is not None
        for field, column in zip(fields, columns, strict=True):
            try:
                column.append(convert((row or {}).get(field.name), field.kind))
            except Malformed:
                column.append(None)
                whole = False
        malformed += not whole
    return [pa.array(column, field.kind) for field, column in zip(fields, columns, strict=True)], malformed


def _buffers(values: Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Offsets of the items, and the bytes they point into."""
    _, offsets, data = values.buffers()
    if data is None:
        return np.zeros(len(values) + 1, np.int32), np.empty(0, np.uint8)
    whole = np.frombuffer(offsets, np.int32)
    return whole[values.offset : values.offset + len(values) + 1], np.frombuffer(data, np.uint8)


def _as_list(values: Array) -> Array:
    """All values as one list, for `binary_join`."""
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
