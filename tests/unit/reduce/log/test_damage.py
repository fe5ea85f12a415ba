"""Logs that were cut, changed, mixed up: what was durable is read, or its loss is named; nothing is skipped."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.errors import DamageError
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log import damage
from millstream_reduce.log.entries import FORMAT, entry_buffers, read_entry, segment_name, whole_entries
from millstream_reduce.log.recovery import read_log
from millstream_reduce.log.segments import segment_numbers
from tests.support.errors import raises
from tests.support.sizes import sized
from tests.unit.reduce.log.kept_entries import KeptEntries, identity, make_log, opened, read_back


def read(directory: Path) -> KeptEntries:
    """What is in the log, without taking it over."""
    kept = KeptEntries()
    read_log(directory, None, kept)
    return kept


def ends(path: Path) -> list[int]:
    """Where the entries of a segment end, its header first."""
    return [entry.end for entry in whole_entries(memoryview(path.read_bytes()), 0)]


def newest(directory: Path) -> Path:
    return directory / segment_name(segment_numbers(directory)[-1])


async def log_of_one_segment(directory: Path, entries: int) -> Path:
    async with opened(directory) as written:
        # Appended together: none of them tells that another one is durable.
        written.append(entries)
        await written.sync()
    (number,) = segment_numbers(directory)
    return directory / segment_name(number)


@pytest.mark.slow
async def test_a_tail_cut_at_any_byte_ends_with_the_last_whole_entry(tmp_path: Path) -> None:
    path = await log_of_one_segment(tmp_path, 4)
    whole, borders = path.read_bytes(), ends(path)
    assert len(borders) == 5
    for length in range(borders[0], len(whole) + 1):
        path.write_bytes(whole[:length])
        assert read(tmp_path).prefix == sum(end <= length for end in borders[1:])


@pytest.mark.parametrize("tail", ["zeros", "garbage", "half an entry", "an old entry"])
async def test_what_is_written_behind_a_torn_tail_follows_the_last_whole_entry(tmp_path: Path, tail: str) -> None:
    path = await log_of_one_segment(tmp_path, 4)
    whole, borders = path.read_bytes(), ends(path)
    tails = {
        "zeros": bytes(300),
        "garbage": random.Random(1).randbytes(300),
        "half an entry": whole[borders[2] : borders[3] - 1],
        "an old entry": whole[borders[0] : borders[1]],
    }
    path.write_bytes(whole[: borders[3]] + tails[tail])
    async with opened(tmp_path, 2) as written:
        assert written.kept.prefix == 3
        assert written.kept.end is not None
        assert written.kept.end.lengths == {1: borders[3]}
        written.append(2)
        await written.sync()
    assert (await read_back(tmp_path, 3)).prefix == 5


@pytest.mark.slow
async def test_any_flipped_byte_is_named_or_ends_what_was_never_called_durable(tmp_path: Path) -> None:
    """Each entry was synced, so each but the last is shown to have been durable by one behind it."""
    written = await make_log(tmp_path, 8)
    assert len(segment_numbers(tmp_path)) > 1
    last = written.kept.locations[8]
    for number in segment_numbers(tmp_path):
        path = tmp_path / segment_name(number)
        whole = path.read_bytes()
        for offset in range(0, len(whole), sized(3, 1)):
            damaged = bytearray(whole)
            damaged[offset] ^= 0x10
            path.write_bytes(damaged)
            if number == last.segment and offset >= last.offset:
                # Only the lane's mark can tell this from a torn tail: the queue asks it.
                assert read(tmp_path).prefix == 7
            else:
                with pytest.raises(DamageError, match=path.name):
                    read(tmp_path)
        path.write_bytes(whole)


@pytest.mark.guarantee("I10")
async def test_an_entry_behind_the_damage_shows_that_it_was_durable(tmp_path: Path) -> None:
    async with opened(tmp_path) as written:
        for _ in range(3):
            written.append()
            await written.sync()
    (number,) = segment_numbers(tmp_path)
    path = tmp_path / segment_name(number)
    whole, places = path.read_bytes(), written.kept.locations
    for broken in (1, 2):
        damaged = bytearray(whole)
        damaged[places[broken].offset + 40] ^= 1
        path.write_bytes(damaged)
        # The header is the log's first entry.
        with raises(codes.SEGMENT_DAMAGED, match=f"entry {broken + 2} after it shows that it had been durable"):
            read(tmp_path)


@pytest.mark.guarantee("I10")
async def test_damage_names_the_file_the_place_and_what_it_affects(tmp_path: Path) -> None:
    written = await make_log(tmp_path, 12)
    place = written.kept.locations[4]
    path = tmp_path / segment_name(place.segment)
    data = bytearray(path.read_bytes())
    data[place.offset + 50] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError) as caught:
        await read_back(tmp_path, 2)
    message = str(caught.value)
    assert f"{path}, offset {place.offset}: the checksum" in message
    assert "records of edge in-sum after stream sequence 3 up to" in message
    assert "Nothing was skipped" in message
    assert "millstream repair" in message


def test_windows_that_a_damaged_place_affects_are_named(tmp_path: Path) -> None:
    def window(start_s: int, segment: int, offset: int) -> wal_pb2.Window:
        pieces = wal_pb2.Pieces(segments=[segment], offsets=[offset], lengths=[64], first_rows=[0], rows=[1])
        start_us = start_s * MICROSECONDS
        return wal_pb2.Window(start_us=start_us, end_us=start_us + 60 * MICROSECONDS, key=b"a\x1fb", pieces=pieces)

    windows = [window(0, 1, 64), window(60, 1, 128), window(120, 2, 128)]
    entry = wal_pb2.Entry(hand_over=wal_pb2.HandOver(number=1, windows=windows))
    (tmp_path / segment_name(2)).write_bytes(b"".join(entry_buffers(1, entry.SerializeToString(), b"")))
    text = damage.affected(tmp_path, 1, 130, 140)
    assert "1 windows that were handed over ([1970-01-01T00:01:00Z, 1970-01-01T00:02:00Z) of key ['a', 'b'])" in text
    assert "records of unknown position" in text
    assert "rows of 2 windows" in damage.affected(tmp_path, 1, 0, 2**40)


async def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    written = await make_log(tmp_path, 40)
    gone = written.kept.locations[15].segment
    (tmp_path / segment_name(gone)).unlink()
    with raises(
        codes.SEGMENT_MISSING, match=rf"{segment_name(gone)} is missing.*in-sum after stream sequence \d+ up to"
    ):
        read(tmp_path)


async def test_a_sealed_segment_that_was_cut_is_named(tmp_path: Path) -> None:
    written = await make_log(tmp_path, 40)
    path = tmp_path / segment_name(written.kept.locations[15].segment)
    path.write_bytes(path.read_bytes()[:-64])
    with raises(codes.SEGMENT_DAMAGED, match=f"{path.name} has .* bytes, and .* says that it had"):
        read(tmp_path)


async def test_a_segment_of_another_log_is_named(tmp_path: Path) -> None:
    await make_log(tmp_path / "one", 40)
    await make_log(tmp_path / "two", 40)
    name = segment_name(3)
    shutil.copy(tmp_path / "two" / name, tmp_path / "one" / name)
    with raises(codes.SEGMENT_MISPLACED, match=f"{name} is a segment of another log .p/sum/window.0, id"):
        read(tmp_path / "one")


async def test_an_old_segment_under_another_name_is_named(tmp_path: Path) -> None:
    await make_log(tmp_path, 40)
    (tmp_path / segment_name(3)).write_bytes((tmp_path / segment_name(2)).read_bytes() + bytes(1024))
    with raises(codes.SEGMENT_MISPLACED, match=r"its header says that it is segment 2: it was renamed or copied"):
        read(tmp_path)


@pytest.mark.guarantee("I10")
async def test_a_segment_of_a_copy_that_went_its_own_way_is_named(tmp_path: Path) -> None:
    """A backup that was gone on with has segments of the same log and number, with other entries."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    await make_log(ours, 10)
    shutil.copytree(ours, theirs)
    for directory, first in ((ours, 1), (theirs, 6)):
        async with opened(directory, 2) as written:
            written.append(first)
            written.log.begin_segment()
            written.append(60)
            await written.sync()
    number = segment_numbers(ours)[-3]
    path, other = ours / segment_name(number), theirs / segment_name(number)
    path.write_bytes(other.read_bytes() + bytes(2048))
    with raises(codes.SEGMENT_MISPLACED):
        read(ours)


async def test_a_segment_behind_the_newest_is_not_taken_for_the_log(tmp_path: Path) -> None:
    await make_log(tmp_path, 40)
    following = segment_numbers(tmp_path)[-1] + 1
    shutil.copy(tmp_path / segment_name(2), tmp_path / segment_name(following))
    with raises(codes.SEGMENT_MISPLACED):
        read(tmp_path)


async def test_damage_in_a_segment_of_which_only_rows_are_needed_does_not_keep_the_log_closed(tmp_path: Path) -> None:
    """Its rows are checked when their window closes, by their reader; its length and its log are checked here."""
    kept = KeptEntries()
    async with opened(tmp_path, kept=kept) as written:
        written.append(20)
        first = min(location.segment for location in kept.locations.values())
        kept.needed = {first}
        written.append(100)
        await written.sync()
    path = tmp_path / segment_name(first)
    whole = path.read_bytes()
    location = next(location for location in kept.locations.values() if location.segment == first)
    path.write_bytes(whole[: location.offset + 45] + b"?" + whole[location.offset + 46 :])
    assert read(tmp_path).numbers[-1] == 120
    with pytest.raises(ValueError, match="checksum"):
        read_entry(memoryview(path.read_bytes()), location.offset)
    path.write_bytes(whole[:-64])
    with raises(codes.SEGMENT_DAMAGED, match=path.name):
        read(tmp_path)


async def test_a_log_of_a_later_format_is_left_alone(tmp_path: Path) -> None:
    header = wal_pb2.Segment(format=FORMAT + 1, number=1, pipeline="p", vertex="sum")
    entry = wal_pb2.Entry(segment=header)
    (tmp_path / segment_name(1)).write_bytes(b"".join(entry_buffers(1, entry.SerializeToString(), b"")))
    with raises(codes.OTHER_VERSION, match=f"written in format {FORMAT + 1}, this version reads up to {FORMAT}"):
        await read_back(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_random_damage_never_yields_what_was_not_written(tmp_path: Path, seed: int) -> None:
    """Cuts, zeroed blocks, garbage, blocks of other places, swapped files: an error, or the first entries."""
    rng = random.Random(seed)
    await make_log(tmp_path / "log", 40, each_synced=seed % 2 == 0)
    for attempt in range(sized(10, 25)):
        copy = tmp_path / f"copy-{attempt}"
        shutil.copytree(tmp_path / "log", copy)
        paths = [copy / segment_name(number) for number in segment_numbers(copy)]
        path, other = rng.choice(paths), rng.choice(paths)
        data = bytearray(path.read_bytes())
        at, length = rng.randrange(len(data)), rng.choice([1, 7, 64, 200])
        match rng.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at : at + length] = bytes(length)
            case 2:
                data[at : at + length] = rng.randbytes(length)
            case 3:
                data[at : at + length] = other.read_bytes()[at : at + length]
            case 4:
                data = bytearray(other.read_bytes())
        path.write_bytes(data)
        kept = KeptEntries()
        with contextlib.suppress(DamageError):
            read_log(copy, identity(2), kept)
        assert kept.numbers == list(range(1, len(kept.numbers) + 1))
