"""Random histories of a ledger, each step judged by a model of plain lists.

`python benchmarks/ledger_histories.py` runs as many as one likes.
"""

from __future__ import annotations

import pytest

from tests.support.ledger_history import History
from tests.support.ledgers import Harness

STEPS = 120


@pytest.mark.guarantee("I1", "I2", "I6")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (1, 2))])
async def test_a_ledger_holds_what_the_model_holds_whatever_happens(harness: Harness, seed: int) -> None:
    history = History(harness, seed)
    await history.run(STEPS)
    assert len(history.steps) == STEPS
