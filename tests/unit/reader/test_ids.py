"""What a source lane remembers of record ids: each once, for its time, within a bound, in little memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from millstream import codes
from millstream.frame import Frame, frame_of_records
from millstream.limits import ID_STORED_BYTES, IDS_MESSAGE_BYTES
from millstream.record import ID_DIGEST_BYTES, Record, id_digest
from millstream_reader import ids as module
from millstream_reader.ids import NewRecords, SeenIds, full
from tests.support.errors import raises


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_us(self) -> int:
        return round(self.now_s * 1e6)

    def monotonic_s(self) -> float:
        return self.now_s


def seen_ids(clock: ManualClock | None = None, *, ttl_s: float = 16.0, ids_max: int = 10_000) -> SeenIds:
    return SeenIds(ttl_s=ttl_s, ids_max=ids_max, clock=clock or ManualClock())


def frame_of(*ids: str) -> Frame:
    return frame_of_records([Record(name.encode(), 1, id=name) for name in ids], ingest_time_us=0)


def digests(*ids: str) -> bytes:
    return b"".join(id_digest(name.encode()) for name in ids)


@pytest.mark.guarantee("I1")
def test_a_repeated_id_is_admitted_once_until_it_expires() -> None:
    clock = ManualClock()
    seen = seen_ids(clock)
    seen.restore(digests("old"), age_s=6.0)
    admitted = seen.admit(frame_of("old", "new"))
    assert admitted.frame is not None
    assert admitted.frame.values() == [b"new"]
    assert (admitted.digests, admitted.repeated) == (digests("new"), 1)
    again = seen.admit(frame_of("old", "new"))
    assert (again.frame, again.digests, again.repeated) == (None, b"", 2)
    # Its age counts; never is an id remembered for less than its time, and a sixteenth longer at most.
    clock.now_s = 9.9
    assert seen.admit(frame_of("old")).repeated == 1
    clock.now_s = 11.1
    assert seen.admit(frame_of("old", "new")).digests == digests("old")
    clock.now_s = 15.9
    assert seen.admit(frame_of("old", "new")).repeated == 2
    clock.now_s = 17.1
    assert seen.admit(frame_of("old", "new")).digests == digests("new")
    assert len(seen) == 2


def test_an_id_twice_in_one_frame_is_admitted_once() -> None:
    admitted = seen_ids().admit(frame_of("x", "x"))
    assert admitted.frame is not None
    assert (admitted.frame.records, admitted.digests, admitted.repeated) == (1, digests("x"), 1)


def test_an_id_that_was_made_up_is_not_remembered() -> None:
    seen = seen_ids()
    admitted = seen.admit(frame_of("made-up", "given"), bytes((1, 0)))
    assert admitted.frame is not None
    assert (admitted.frame.records, admitted.digests, len(seen)) == (2, digests("given"), 1)


def test_ids_that_were_all_made_up_are_not_read() -> None:
    clock = ManualClock()
    seen = seen_ids(clock)
    seen.admit(frame_of("given"))
    clock.now_s += 2 * seen.ttl_s
    frame = replace(frame_of("made-up", "another"), ids_column=b"not a column")
    assert seen.admit(frame, bytes((1, 1))) == NewRecords(frame)
    assert len(seen) == 0, "what has expired is forgotten all the same"


def test_a_repeating_source_without_ids_is_a_defect() -> None:
    frame = frame_of_records([Record(b"a", 1)], ingest_time_us=0)
    with raises(codes.IMPOSSIBLE):
        seen_ids().admit(frame)


@pytest.mark.guarantee("I8")
def test_ids_are_bounded_in_number_and_in_the_ledger() -> None:
    clock = ManualClock()
    seen = seen_ids(clock, ids_max=100)
    assert seen.has_room([b"%d" % number for number in range(100)])
    assert not seen.has_room([b"%d" % number for number in range(101)])
    assert not seen.has_room([b"%d" % number for number in range(90)], 11)
    seen.admit(frame_of(*map(str, range(100))))
    assert seen.room == 0
    assert seen.has_room([b"0", b"99"]), "those that are known need no room"
    assert not seen.has_room([b"0", b"100"])
    assert "100 record ids are remembered" in full(seen)
    assert "idsMax" in full(seen)
    clock.now_s = 17.1
    assert seen.has_room([b"100"])
    assert len(seen) == 0
    # Ids that come one by one take a message each.
    for number in range(100):
        if not seen.has_room([b"%d" % number]):
            break
        seen.admit(frame_of(str(number)))
    assert len(seen) == 100 * ID_STORED_BYTES // (IDS_MESSAGE_BYTES + ID_DIGEST_BYTES)
    assert seen.frees_in_s == pytest.approx(16.9, abs=1.0)


@pytest.mark.slow
@pytest.mark.guarantee("I1")
def test_what_is_forgotten_is_freed_and_never_taken_for_known() -> None:
    clock = ManualClock()
    seen = seen_ids(clock)
    # As many periods as labels come round several times, with little to do in each.
    for number in range(1000):
        clock.now_s = number * 1.0
        assert seen.admit(frame_of(str(number), f"every-{number // 10}")).repeated == (1 if number % 10 else 0)
        assert len(seen) <= 2 * 18
    for bucket in range(100):
        clock.now_s += 1.0
        assert seen.admit(frame_of(f"last-{bucket}")).repeated == 0
    held = sum(len(bucket) for bucket in seen._buckets if bucket is not None)
    assert held <= (ID_DIGEST_BYTES + 1) * (len(seen) + module._SWEPT_AT_ONCE)


@pytest.mark.slow
@pytest.mark.guarantee("I8")
def test_ids_take_little_memory() -> None:
    count = 200_000
    stored = b"".join(id_digest(b"%d" % number) for number in range(count))
    tracemalloc.start()
    try:
        seen = seen_ids(ids_max=count)
        seen.restore(stored, 0.0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(seen) == count
    # 168 bytes each it was; the buckets themselves take most here, and little of it beside millions.
    assert held / count < 60
