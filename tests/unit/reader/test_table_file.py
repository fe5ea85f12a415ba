"""Whose fault it is that a Parquet file cannot be read: the file's, or that of the place where it is."""

from __future__ import annotations

import io
import json
import random
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream_connectors.file.source import parquet_pages
from millstream_connectors.file.source.table_file import UNREADABLE, parquet_rows
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


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_the_longest_row_of_lists_is_found_in_their_levels(version: Any, compression: Any) -> None:
    rng = random.Random(f"{version}{compression}")
    sizes = [rng.choice([0, 0, 1, 2, 3, rng.randrange(9)]) for _ in range(2000)] + [400, 0, 7]
    rng.shuffle(sizes)
    lists = [None if size == 0 and rng.random() < 0.3 else [n % 3 or None for n in range(size)] for size in sizes]
    deep = [None if one is None else [[1] * n if n else None for n in range(len(one) % 7)] for one in lists]
    table = pa.table({"flat": pa.array(lists, pa.list_(pa.int64())), "deep": pa.array(deep)})
    file = io.BytesIO()
    pq.write_table(
        table, file, compression=compression, data_page_version=version, write_batch_size=99, data_page_size=99
    )
    opened = pq.ParquetFile(file)
    slots = {
        "flat": [max(1, len(one or ())) for one in lists],
        "deep": [sum(max(1, len(inner or ())) for inner in one or ()) or 1 for one in deep],
    }
    for at, counts in enumerate(slots.values()):
        chunk, column = opened.metadata.row_group(0).column(at), opened.schema.column(at)
        pages = list(parquet_pages._pages(file, chunk, column))
        assert len(pages) > 3
        assert sum(page.values for page in pages if page.kind != parquet_pages._DICTIONARY) == sum(counts)
        assert parquet_pages.longest_row(file, chunk, column, pages) == max(counts)
    found = [json.loads(row) for block in parquet_rows(file, 0) for row in block]
    assert found == table.to_pylist()


def test_texts_that_repeat_the_beginning_of_others_are_read() -> None:
    file = io.BytesIO()
    table = pa.table({"text": [f"text {n // 3}" for n in range(ROWS)], "n": range(ROWS)})
    encodings = {"text": "DELTA_BYTE_ARRAY", "n": "DELTA_BINARY_PACKED"}
    pq.write_table(table, file, use_dictionary=False, column_encoding=encodings)
    found = [json.loads(row) for block in parquet_rows(file, 0) for row in block]
    assert found == table.to_pylist()


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_heads_of_pages_that_are_changed_raise_one_error(at: int) -> None:
    contents = bytearray(encoded())
    contents[4 + at] ^= 0xFF
    with suppress(*UNREADABLE):
        list(parquet_rows(io.BytesIO(contents), 0))


def test_the_head_of_a_page_is_not_nested_deeper_than_it_can_be() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        parquet_pages._head(io.BytesIO(b"\x1c" * 100_000), 0)
