"""A data directory knows which ledgers it has, and says so before a run starts again without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import DamageError
from millstream_runner.local.directory import KnownLedgers
from millstream_runner.local.summary import Summary, check_stored
from tests.support.errors import raises


@pytest.mark.guarantee("I10")
def test_a_ledger_that_is_gone_or_was_made_anew_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledgers.json"
    known = KnownLedgers(path)
    known.check({"in": "p-in 1"})
    known.note({"in": "p-in 1"})
    known.note({"in": "p-in 1", "map": "p-map 2"})
    KnownLedgers(path).check({"in": "p-in 1", "map": "p-map 2", "out": "p-out 3"})
    with pytest.raises(DamageError, match=r"ledgers\.json .*that of vertex in was rebuilt; that of vertex map is gone"):
        KnownLedgers(path).check({"in": "p-in 4"})


@pytest.mark.guarantee("I10")
def test_what_contradicts_itself_before_a_run_is_damage(tmp_path: Path) -> None:
    check_stored(Summary([], [], []), tmp_path)
    with raises(
        codes.STORED_CONTRADICTS, match=r"contradicts itself.*9 records read, but only 7 written.*millstream repair"
    ):
        check_stored(Summary([], [], ["buffer in-map.0: 9 records read, but only 7 written"]), tmp_path)
