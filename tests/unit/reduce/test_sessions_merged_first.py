"""Sessions over a real queue against their definition, through deaths, and logs that are lost or old.

`python benchmarks/session_seeds.py` lives as many seeds as one likes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sizes import sized
from tests.unit.reduce.merged_first import Tally, live

SEEDS = range(sized(5, 12))


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I3", "I5", "I6")
async def test_a_record_is_late_only_where_the_session_it_would_be_in_has_ended(tmp_path: Path) -> None:
    tallies: list[Tally] = []
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        tallies.append(await live(seed, tmp_path / str(seed)))
    # All of it has happened.
    assert sum(tally.joined for tally in tallies) > 0
    assert sum(tally.late for tally in tallies) > 0
    assert sum(tally.early for tally in tallies) > 0
    assert sum(tally.deaths for tally in tallies) > 0
    assert sum(tally.made_anew for tally in tallies) > 0
