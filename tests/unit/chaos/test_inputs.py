"""What was acknowledged against what arrived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream_runner.chaos.oracle.checks import Result, verdict
from millstream_runner.chaos.oracle.expected import pushed_checks, read_inputs, received_rows, repeats_check
from millstream_runner.chaos.oracle.sinks import Row

NONCES = {0: "a", 1: "b", 2: "c"}


def row(number: int, nonce: str | None = None, unique: str = "") -> Row:
    return {"number": number, "nonce": nonce or NONCES[number], "id": f"id-{number}{unique}"}


def lines(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return path


def test_what_was_tried_and_what_was_acknowledged_is_told_apart(tmp_path: Path) -> None:
    tried = [{"number": number, "nonce": nonce, "state": "attempted"} for number, nonce in NONCES.items()]
    path = lines(tmp_path / "inputs", *tried, {"number": 1, "nonce": "b", "state": "acknowledged"})
    assert read_inputs(path) == (NONCES, {1})


def test_what_was_not_acknowledged_may_be_there_or_not_but_alike() -> None:
    for there in ([row(0), row(1)], [row(0), row(1), row(2)]):
        assert verdict(pushed_checks(NONCES, {0, 1}, {"one": there, "other": list(reversed(there))}))["sound"]
    checks = pushed_checks(NONCES, {0, 1}, {"one": [row(0), row(1)], "other": [row(0), row(1), row(2)]})
    assert verdict(checks)["counts"] == {"lost": 0, "repeated": 0, "disagreeing": 1}


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([row(0)], {"lost": 1, "repeated": 0, "disagreeing": 1}),
        ([row(0), row(1), row(1)], {"lost": 0, "repeated": 1, "disagreeing": 0}),
        ([row(0), row(1, nonce="x")], {"lost": 0, "repeated": 1, "disagreeing": 0}),
        ([row(0), row(1, unique="x")], {"lost": 0, "repeated": 0, "disagreeing": 1}),
    ],
)
def test_what_is_lost_repeated_changed_or_disagreeing_is_seen(rows: list[Row], counts: dict[str, int]) -> None:
    checks = pushed_checks(NONCES, {0, 1}, {"one": [row(0), row(1)], "other": rows})
    assert not verdict(checks)["sound"]
    assert verdict(checks)["counts"] == counts


def test_requests_that_come_again_must_be_the_same(tmp_path: Path) -> None:
    body = "".join(json.dumps(row(number)) + "\n" for number in (0, 1))
    kept, again = {"key": "k", "body": body}, {"key": "k", "again": True, "same": True}
    path = lines(tmp_path / "received", kept, again)
    assert repeats_check("sink", path).result is Result.HELD
    assert list(received_rows(path)) == [row(0), row(1)]
    path = lines(tmp_path / "received", kept, {**again, "same": False})
    assert repeats_check("sink", path).result is Result.VIOLATED
