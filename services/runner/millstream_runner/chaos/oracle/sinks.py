"""Reads what file sinks have written, using only the formats of the files.

Above it: the checks. Below it: files. Unfinished files are below `.millstream` and are not results; a run that has
ended may not leave any.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_NOTE = re.compile(rb"(\S+ \d+ [0-9a-f]{16})?")


def rows_of(directory: Path) -> Iterator[Row]:
    """Every record of every finished file, in the order of the files' names."""
    for path in finished_files(directory):
        match path.suffix:
            case ".jsonl":
                yield from json_lines(path)
            case ".csv":
                with path.open(encoding="utf-8", newline="") as file:
                    yield from csv.DictReader(file)
            case ".parquet":
                # An optional dependency.
                import pyarrow.parquet

                yield from pyarrow.parquet.read_table(path).to_pylist()
            case _:
                raise ValueError(f"{path} does not have a format of file sinks")


def finished_files(directory: Path) -> list[Path]:
    """The visible files."""
    return sorted(path for path in directory.glob("*") if path.is_file() and not path.name.startswith("."))


def unfinished_files(directory: Path) -> list[Path]:
    """Files that are not results but are distinguished from results only by their place.

    A file with `=` in its name is a note on the progress of the sink: empty, or with the name of a frame, never a
    record.
    """
    return sorted(
        path
        for path in (directory / ".millstream").rglob("*")
        if path.is_file()
        and path.suffix in (".jsonl", ".csv", ".parquet")
        and not ("=" in path.name and _NOTE.fullmatch(path.read_bytes()))
    )


def json_lines(path: Path) -> Iterator[Row]:
    """The objects of a file with one on each line. Raises `ValueError` if the last line is incomplete."""
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        raise ValueError(f"the last line of {path} is incomplete")
    for line in text.splitlines():
        row = json.loads(line)
        yield row if isinstance(row, dict) else {"value": row}
