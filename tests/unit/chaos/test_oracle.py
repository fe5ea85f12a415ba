"""The oracle sees what it is there to see: every kind of loss, repetition and disagreement, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.chaos.oracle.account import account_checks, by_vertex
from millstream_runner.chaos.oracle.checks import Check, Result, verdict
from millstream_runner.chaos.oracle.expected import Series, mesh_checks, window_sums, windows_checks
from millstream_runner.chaos.oracle.guarantees import ONCE, sink_checks
from millstream_runner.chaos.oracle.pipeline import OracleEdge, OraclePipeline
from millstream_runner.chaos.oracle.sinks import Row

Marks = dict[tuple[str, str], mark_pb2.Mark]
SERIES = Series(records=10, keys=2, start_us=0, step_us=400_000.0)
PIPELINE = OraclePipeline(
    "p",
    {"in": {"source": {}}, "left": {"sink": {"file": {}}}, "right": {"sink": {"file": {}}}},
    (
        OracleEdge("in-left", "in", "left", False, 1, False),
        OracleEdge("in-right", "in", "right", False, 1, False),
    ),
    "jetstream",
)


def violated(checks: Iterable[Check]) -> list[str]:
    return [f"{check.subject}: {check.detail}" for check in checks if check.result is Result.VIOLATED]


def numbered(*numbers: int, prefix: str = "id") -> list[Row]:
    return [{"number": number, "id": f"{prefix}-{number}"} for number in numbers]


def test_a_sound_mesh_is_sound() -> None:
    checks = mesh_checks(3, {"left": numbered(2, 0, 1), "right": numbered(0, 1, 2)})
    assert verdict(checks)["sound"]
    assert verdict(checks)["counts"] == {"lost": 0, "repeated": 0, "disagreeing": 0}


@pytest.mark.parametrize(
    ("right", "counts", "word"),
    [
        (numbered(0, 2), {"lost": 1, "repeated": 0, "disagreeing": 0}, "missing"),
        (numbered(0, 1, 2, 1), {"lost": 0, "repeated": 1, "disagreeing": 0}, "number 1 is repeated"),
        (numbered(0, 1, 2, 3), {"lost": 0, "repeated": 1, "disagreeing": 0}, "never made"),
        ([*numbered(0, 1), *numbered(2, prefix="x")], {"lost": 0, "repeated": 0, "disagreeing": 1}, "a different id"),
    ],
)
def test_what_is_lost_repeated_or_disagreeing_in_a_mesh_is_seen(
    right: list[Row], counts: dict[str, int], word: str
) -> None:
    checks = mesh_checks(3, {"left": numbered(0, 1, 2), "right": right})
    assert verdict(checks)["counts"] == counts
    (fault,) = violated(checks)
    assert word in fault


def window_rows() -> list[Row]:
    return [
        {"key": key, "start": datetime.fromtimestamp(at // 1_000_000, UTC), "n": count, "total": total}
        for (key, at), (count, total) in window_sums(SERIES, 1_000_000).items()
    ]


def test_sums_of_windows_are_computed_from_the_numbers() -> None:
    # Number n is at 0.4 n seconds and appears n mod 3 times: 1 and 2 in the first window, 4 in the second, ...
    sums = window_sums(SERIES, 1_000_000)
    assert sums["key-1", 0] == (1, 1)
    assert sums["key-0", 0] == (2, 4)
    assert sums["key-0", 1_000_000] == (1, 4)
    assert sums["key-0", 3_000_000] == (2, 16)
    assert verdict(windows_checks(SERIES, "out", window_rows()))["sound"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda rows: rows[1:], "has no result"),
        (lambda rows: [*rows, rows[0]], "another result"),
        (lambda rows: [{**rows[0], "n": rows[0]["n"] + 1}, *rows[1:]], "expected"),
        (lambda rows: [*rows, {**rows[0], "key": "key-9"}], "window without records"),
    ],
)
def test_what_is_wrong_with_windows_is_seen(change: Callable[[list[Row]], list[Row]], word: str) -> None:
    (fault,) = violated(windows_checks(SERIES, "out", change(window_rows())))
    assert word in fault


def sound_marks() -> Marks:
    source = mark_pb2.Mark(ended=True, account=mark_pb2.Account(inputs=3, processed=3))
    for edge in ("in-left", "in-right"):
        source.written.add(edge=edge, records=3)
    sink = mark_pb2.Mark(ended=True, account=mark_pb2.Account(inputs=3, processed=2, dropped={"no good": 1}))
    return {("in", "source.0"): source, ("left", "in-left.0"): sink, ("right", "in-right.0"): sink}


def test_an_account_that_balances_is_sound() -> None:
    assert not violated(account_checks(PIPELINE, sound_marks(), ended=True))


def _unaccounted(mark: mark_pb2.Mark) -> None:
    mark.account.processed -= 1


def _open(mark: mark_pb2.Mark) -> None:
    mark.account.processed -= 1
    mark.account.open += 1


def _unread(mark: mark_pb2.Mark) -> None:
    mark.account.inputs -= 1
    mark.account.processed -= 1


def _read_twice(mark: mark_pb2.Mark) -> None:
    mark.account.inputs += 1
    mark.account.processed += 1


def _not_ended(mark: mark_pb2.Mark) -> None:
    mark.ended = False


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (_unaccounted, "accounted for"),
        (_open, "in open windows"),
        (_unread, "3 records written, 2 read"),
        (_read_twice, "3 records written, 4 read"),
        (_not_ended, "has not ended"),
    ],
)
def test_an_account_that_does_not_balance_is_seen(spoil: Callable[[mark_pb2.Mark], None], word: str) -> None:
    marks = sound_marks()
    mark = mark_pb2.Mark()
    mark.CopyFrom(marks["left", "in-left.0"])
    spoil(mark)
    (fault,) = violated(account_checks(PIPELINE, {**marks, ("left", "in-left.0"): mark}, ended=True))
    assert word in fault


CHAINED = OraclePipeline(
    "p",
    {"in": {"source": {}}, "map": {"udf": {}}, "out": {"sink": {"file": {}}}},
    (
        OracleEdge("in-map", "in", "map", False, 1, False),
        OracleEdge("map-out", "map", "out", False, 1, False),
    ),
    "jetstream",
)


def chained_marks(*, passed_on: int = 3, got: int = 3, written: int = 2) -> Marks:
    """Source and map are one lane."""
    chain = mark_pb2.Mark(ended=True, account=mark_pb2.Account(inputs=3, processed=3))
    chain.members.add(vertex="map", edge="in-map", account=mark_pb2.Account(inputs=got, processed=got - 1, filtered=1))
    chain.written.add(edge="in-map", records=passed_on)
    chain.written.add(edge="map-out", records=written)
    sink = mark_pb2.Mark(ended=True, account=mark_pb2.Account(inputs=2, processed=2))
    return {("in", "source.0"): chain, ("out", "map-out.0"): sink}


def test_a_chain_is_held_to_the_account_of_each_of_its_vertices() -> None:
    checks = account_checks(CHAINED, by_vertex(CHAINED, chained_marks()), ended=True)
    assert not violated(checks)
    assert {check.subject for check in checks} == {"in", "map", "out", "in-map", "map-out"}


@pytest.mark.parametrize(
    ("marks", "fault"),
    [
        (chained_marks(passed_on=4), "in-map: buffer in-map/0: 4 records written, 3 read"),
        (chained_marks(got=2), "in-map: buffer in-map/0: 3 records written, 2 read"),
        (chained_marks(written=3), "map-out: buffer map-out/0: 3 records written, 2 read"),
    ],
)
def test_what_is_lost_inside_or_behind_a_chain_is_seen(marks: Marks, fault: str) -> None:
    assert violated(account_checks(CHAINED, by_vertex(CHAINED, marks), ended=True)) == [fault]


def test_what_waits_after_a_drain_is_no_violation_but_told() -> None:
    marks = sound_marks()
    marks["in", "source.0"].written[0].records += 5
    checks = account_checks(PIPELINE, marks, ended=False)
    assert not violated(checks)
    (told,) = [check for check in checks if check.result is Result.UNCHECKED]
    assert told.detail == "5 of 8 records still wait in it"


def write(directory: Path, name: str, rows: list[Row]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def name_of(after: int, end: int) -> str:
    return f"left.in-left.0-{after:016}.0000000-{end:016}.0000000-e1.jsonl"


def sound_sinks(directory: Path) -> None:
    for sink in ("left", "right"):
        write(directory / sink, name_of(0, 5), numbered(0))
        write(directory / sink, name_of(5, 9), numbered(1))


def sinks_of(directory: Path, marks: Marks) -> list[Check]:
    return sink_checks(PIPELINE, marks, directory, {"left": ONCE, "right": ONCE}, "number", ended=True)


def test_sound_files_are_sound(tmp_path: Path) -> None:
    sound_sinks(tmp_path)
    checks = sinks_of(tmp_path, sound_marks())
    assert not violated(checks)
    assert "sinks with the same input have the same records" in [check.what for check in checks]


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        (name_of(9, 12), [], []),
        (name_of(8, 12), [], ["overlap"]),
        (name_of(10, 12), [], ["leave a gap"]),
        ("x.jsonl", [], ["is not a name of a finished file"]),
        (".millstream/1/a.jsonl", [], ["is unfinished"]),
        (".millstream/1/0.jsonl=" + name_of(8, 9), [], []),
        (".millstream/1/0.jsonl=" + name_of(8, 9), numbered(1), ["is unfinished"]),
        (
            name_of(9, 12),
            numbered(1),
            ["3 records in files, 2 in the account", "number 1 appears 2", "1 records differ"],
        ),
        (name_of(9, 12), numbered(7), ["3 records in files, 2 in the account", "1 records differ"]),
    ],
)
def test_files_that_break_the_promise_are_seen(tmp_path: Path, name: str, rows: list[Row], words: list[str]) -> None:
    sound_sinks(tmp_path)
    (tmp_path / "left" / name).parent.mkdir(parents=True, exist_ok=True)
    write((tmp_path / "left" / name).parent, Path(name).name, rows)
    faults = violated(sinks_of(tmp_path, sound_marks()))
    assert len(faults) == len(words), faults
    assert all(word in fault for word, fault in zip(words, faults, strict=True))


def test_a_sink_is_held_to_no_more_than_it_states(tmp_path: Path) -> None:
    checks = sink_checks(
        PIPELINE, sound_marks(), tmp_path, {"left": "at-least-once", "right": "no-target"}, None, ended=True
    )
    assert {check.result for check in checks} == {Result.UNCHECKED}
