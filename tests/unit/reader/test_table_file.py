"""Whose fault it is that a Parquet file cannot be read: the file's, or that of the place where it is."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream_reader.sources.file.table_file import UNREADABLE, parquet_rows
from tests.support.damaged_files import DAMAGES

ROWS = 5000


def encoded() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(ROWS))}), stream, row_group_size=1000)
    return stream.getvalue()


class Away(io.BytesIO):
    """Contents in a place that is away for some of the reads."""

    def __init__(self, data: bytes, reads: range) -> None:
        super().__init__(data)
        self._failing = reads
        self._count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._count += 1
        if self._count in self._failing:
            raise OSError("timed out")
        return super().read(size)


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("how", DAMAGES)
def test_a_file_that_is_damaged_is_unreadable(how: str) -> None:
    with pytest.raises(UNREADABLE):
        list(parquet_rows(io.BytesIO(DAMAGES[how](encoded())), 0))


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("reads", [1, 1000])
def test_a_place_that_is_away_is_not_damage_even_if_it_is_back_at_once(first: int, reads: int) -> None:
    with pytest.raises(OSError, match="timed out"):
        list(parquet_rows(Away(encoded(), range(first, first + reads)), 0))


def test_an_intact_file_is_read() -> None:
    blocks = list(parquet_rows(Away(encoded(), range(0)), 7))
    assert [json.loads(row)["n"] for block in blocks for row in block] == list(range(7, ROWS))
