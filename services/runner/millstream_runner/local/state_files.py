"""Files of entries: JSON lines, or Parquet.

Above it: `millstream state export` and `import`. Below it: rows. In Parquet, items and values are columns of JSON
texts, because those of one state have other types than those of another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from millstream import codes
from millstream.errors import UserError
from millstream.files import create_private
from millstream.json_parser import parse_json

PARQUET = ".parquet"
"""The suffix of files in Parquet; all others have JSON lines."""
_BATCH_ROWS = 10_000
_TEXTS = ("item", "value")
"""Members that are JSON texts in Parquet."""


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place. Raises `UserError` if the file is not in its format."""
    return _read_parquet(path) if path.suffix == PARQUET else _read_lines(path)


def _read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except ValueError as error:
                raise _unreadable(f"{path}:{number}", f"it is not JSON: {error}") from None
            yield f"{path}:{number}", row


def _read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                for found in batch.to_pylist():
                    number += 1
                    row = {name: value for name, value in found.items() if value is not None}
                    for name in _TEXTS:
                        if name in row:
                            row[name] = parse_json(row[name])
                    yield f"{path}: row {number}", row
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise _unreadable(f"{path}: after row {number}", str(error)) from None


def _unreadable(place: str, what: str) -> UserError:
    return UserError(codes.STATE_NOT_CHANGED, f"{place}: {what}. Nothing was changed")


Write = Callable[[Mapping[str, Any]], None]


@contextmanager
def rows_written(path: Path) -> Iterator[Write]:
    """Writes a file row by row. It has its name only when all of them are in it."""
    temporary = path.with_name(f"{path.name}.unfinished")
    try:
        # It has what functions remember, as the data directory has.
        temporary.unlink(missing_ok=True)
        with open(create_private(temporary), "wb") as file:
            if path.suffix == PARQUET:
                with _parquet_written(file) as write:
                    yield write
            else:
                yield lambda row: _write_line(file, row)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_line(file: BinaryIO, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


@contextmanager
def _parquet_written(file: BinaryIO) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    text, texts = pyarrow.string(), pyarrow.list_(pyarrow.string())
    schema = pyarrow.schema(
        {
            "key": texts,
            "key_base64": texts,
            "state": text,
            "kind": text,
            "item": text,
            "item_base64": text,
            "value": text,
            "value_base64": text,
            "expires_us": pyarrow.int64(),
            "version": pyarrow.int32(),
            "partition": pyarrow.int32(),
        }
    )
    rows: list[Mapping[str, Any]] = []

    with pyarrow.parquet.ParquetWriter(file, schema) as writer:

        def flush(some: Iterable[Mapping[str, Any]]) -> None:
            writer.write_table(pyarrow.Table.from_pylist(list(some), schema=schema))
            rows.clear()

        def write(row: Mapping[str, Any]) -> None:
            rows.append({name: json.dumps(value) if name in _TEXTS else value for name, value in row.items()})
            if len(rows) == _BATCH_ROWS:
                flush(rows)

        yield write
        flush(rows)
