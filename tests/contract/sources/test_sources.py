"""What every source that can be read again promises, one suite over all of them.

Reading again from any position gives the same continuation; limits are kept; a source that ends says so, and an ended
one stays ended.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.record import Record
from millstream_reader.source import SourceBatch, SourceLane
from tests.contract.sources.lanes import open_lane, read_to_end, values
from tests.support.errors import raises
from tests.support.sizes import sized


@dataclass(frozen=True)
class Case:
    """One source, and the input it needs."""

    name: str
    spec: dict[str, Any]
    write: Callable[[Path], None]
    count: int
    """Records in all."""
    invalid: int = 0
    partition: int = 0
    partitions: int = 1
    times_are_its_own: bool = True
    """False: event time is the time of reading."""


def nothing(_: Path) -> None:
    """The source needs no input."""


def write_lines(folder: Path) -> None:
    (folder / "b.txt").write_bytes(b"".join(b"line %d %s\n" % (i, b"x" * (i % 50)) for i in range(100)) + b"no newline")
    (folder / "a.txt").write_bytes("\ufeffä first\r\n\r\nthird\r\n".encode())
    (folder / "c.txt").write_bytes(b"")


def write_jsonl(folder: Path) -> None:
    lines = [json.dumps({"at": i * 1000, "who": {"name": f"n{i % 7}"}, "n": i}) for i in range(90)]
    lines[10] = '{"at": '
    lines[20] = ""
    lines[30] = '{"at": "soon", "who": {"name": "n"}}'
    lines[40] = '{"at": 1}'
    (folder / "x.jsonl").write_text("\n".join(lines) + "\n")


CSV_TEXT = "at,who,what\n" + "".join(
    f'2024-01-01T00:00:{i % 60:02d}Z,k{i % 3},"a ""quoted""\n\n, text {i}"\n' if i % 4 == 0 else f"{i * 1},k,plain\n"
    for i in range(0, 120, 2)
)


def write_csv(folder: Path) -> None:
    (folder / "x.csv").write_text(CSV_TEXT)


def write_gz(folder: Path) -> None:
    with gzip.open(folder / "x.txt.gz", "wb") as file:
        file.writelines(b"packed %d\n" % i for i in range(500))


GENERATED = {"rpu": 0, "records": 300, "msgSize": 60, "keyCount": 7}
STEPPED = {**GENERATED, "start": "2024-01-01T00:00:00Z", "eventTimeStep": "250us", "lateShare": 0.1, "lateBy": "1h"}
CASES = [
    Case("generator", {"generator": GENERATED}, nothing, 300, times_are_its_own=False),
    Case("stepped", {"generator": {**STEPPED, "jitter": "5ms", "seed": 3}}, nothing, 300),
    Case("share", {"generator": {**STEPPED, "records": 301}}, nothing, 100, partition=1, partitions=3),
    Case("blob", {"generator": {"rpu": 0, "records": 9, "valueBlob": "AAEC"}}, nothing, 9, times_are_its_own=False),
    Case("keyed", {"generator": STEPPED, "keys": ["lane", "number"]}, nothing, 300),
    Case("lines", {"file": {"paths": ["*.txt"]}}, write_lines, 104, times_are_its_own=False),
    Case(
        "jsonl",
        {
            "file": {"paths": ["x.jsonl"], "format": "jsonl"},
            "eventTime": {"field": "at", "format": "epoch_ms"},
            "keys": ["who.name"],
        },
        write_jsonl,
        86,
        invalid=3,
    ),
    Case(
        "csv",
        {"file": {"paths": ["x.csv"], "format": "csv"}, "eventTime": {"field": "at"}, "keys": ["who", "what"]},
        write_csv,
        30,
        invalid=30,
    ),
    Case("gz", {"file": {"paths": ["*.gz"]}}, write_gz, 500, times_are_its_own=False),
]


@asynccontextmanager
async def open_case(case: Case, folder: Path, position: bytes = b"") -> AsyncIterator[SourceLane]:
    async with open_lane(
        case.spec, position, base_dir=folder, partition=case.partition, partitions=case.partitions
    ) as lane:
        yield lane


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    found: Case = request.param
    found.write(tmp_path)
    return found


def comparable(case: Case, records: list[Record]) -> list[Any]:
    if case.times_are_its_own:
        return records
    return [(record.value, record.keys, record.headers) for record in records]


@pytest.mark.parametrize(("records_max", "bytes_max"), [(4096, 1 << 20), (7, 1 << 20), (64, 300), (1, 1)])
async def test_all_of_it_comes_once_within_the_limits(
    case: Case, tmp_path: Path, records_max: int, bytes_max: int
) -> None:
    async with open_case(case, tmp_path) as lane:
        assert lane.replayable
        records, invalid, _ = await read_to_end(lane, records_max, bytes_max)
    async with open_case(case, tmp_path) as lane:
        in_one_go, _, _ = await read_to_end(lane)
    assert (len(records), len(invalid)) == (case.count, case.invalid)
    assert comparable(case, records) == comparable(case, in_one_go)


async def test_reading_again_from_any_position_gives_the_same_continuation(case: Case, tmp_path: Path) -> None:
    async with open_case(case, tmp_path) as lane:
        records, invalid, batches = await read_to_end(lane, records_max=23)
    done = bad = 0
    for number, batch in enumerate(batches):
        done += batch.frame.records if batch.frame is not None else 0
        bad += len(batch.invalid)
        if number % sized(4, 1) and batch is not batches[-1]:
            continue
        async with open_case(case, tmp_path, batch.position) as lane:
            again, invalid_again, _ = await read_to_end(lane, records_max=31)
        assert comparable(case, again) == comparable(case, records[done:])
        assert invalid_again == invalid[bad:]


async def test_an_ended_source_stays_ended(case: Case, tmp_path: Path) -> None:
    async with open_case(case, tmp_path) as lane:
        _, _, batches = await read_to_end(lane)
        last = await lane.read(10, 1000, 0.01)
        assert (last.frame, last.ended, last.position) == (None, True, batches[-1].position)
    async with open_case(case, tmp_path, batches[-1].position) as lane:
        again = await lane.read(10, 1000, 0.01)
        assert (again.frame, again.ended) == (None, True)


async def test_after_drain_nothing_new_comes(case: Case, tmp_path: Path) -> None:
    async with open_case(case, tmp_path) as lane:
        first = await lane.read(5, 1 << 20, 1.0)
        await lane.drain()
        rest: SourceBatch = await lane.read(5, 1 << 20, 1.0)
        assert (rest.frame, rest.position) == (None, first.position)


async def test_lanes_share_the_input_without_gap_or_overlap(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"{index}.txt").write_text(f"f{index}\n")
    for spec, whole in (
        ({"file": {"paths": ["*.txt"]}}, {b"f%d" % index for index in range(40)}),
        ({"generator": {"rpu": 0, "records": 40}}, None),
    ):
        parts: list[bytes] = []
        for partition in range(3):
            async with open_lane(spec, base_dir=tmp_path, partition=partition, partitions=3) as lane:
                records, _, _ = await read_to_end(lane)
                assert len(records) > 5
                parts += values(records)
        if whole is None:
            assert sorted(json.loads(value)["number"] for value in parts) == list(range(40))
        else:
            assert len(parts) == len(whole)
            assert set(parts) == whole


async def test_a_position_holds_for_its_own_source_and_partitions_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    generator, files = {"generator": {"records": 5, "rpu": 0}}, {"file": {"paths": ["a.txt"]}}
    async with open_lane(generator) as lane:
        position = (await lane.read(2, 1 << 20, 1.0)).position
    with raises(codes.SOURCE_CHANGED, match="now has 2 partitions, and had 1"):
        async with open_lane(generator, position, partitions=2):
            pass
    with raises(codes.SOURCE_CHANGED, match="the source is now `file`, and was `generator`"):
        async with open_lane(files, position, base_dir=tmp_path):
            pass
    with raises(codes.POSITION_UNREADABLE):
        async with open_lane(generator, b"\x00\x01"):
            pass
