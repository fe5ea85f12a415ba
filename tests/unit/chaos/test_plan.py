"""The plan of faults: the same again from a seed, and fair to every kind."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from millstream.limits import HUNG_AFTER_S
from millstream_runner.chaos.plan import ROLES, SPARK_ROLES, FaultKind, NetworkFault, Role, strikes

ALL = tuple(FaultKind)


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    plans = [list(islice(strikes(seed, ALL, ROLES), 200)) for seed in (7, 7, 8)]
    assert plans[0] == plans[1] != plans[2]


def test_kinds_roles_and_network_faults_come_equally_often() -> None:
    kinds = 4 * len(NetworkFault) * len(ROLES + SPARK_ROLES) * len(ALL)
    plan = list(islice(strikes(1, ALL, ROLES + SPARK_ROLES), kinds))
    assert len(set(Counter(strike.kind for strike in plan).values())) == 1
    killed = Counter(strike.role for strike in plan if strike.kind is FaultKind.KILL)
    assert killed.keys() == set(ROLES + SPARK_ROLES)
    assert len(set(killed.values())) == 1
    assert len(set(Counter(strike.network for strike in plan if strike.network is not None).values())) == 1


@pytest.mark.parametrize("seed", range(5))
def test_strikes_last_wait_and_hurry_as_their_kind_says(seed: int) -> None:
    plan = list(islice(strikes(seed, ALL, ROLES), 500))
    assert not plan[0].into_recovery
    assert [strike.number for strike in plan] == list(range(1, 501))
    for strike in plan:
        assert strike.wait_s > 0
        assert (strike.lasts_s == 0) == (
            strike.kind is FaultKind.KILL
            or (strike.kind is FaultKind.NETWORK and strike.network is not NetworkFault.STALL)
        )
        assert not (strike.kind is FaultKind.PAUSE and strike.role is Role.RUNNER)
        assert not strike.into_recovery or strike.kind is FaultKind.KILL
        assert not strike.successor or strike.role is Role.WORKER
    kills = [strike for strike in plan if strike.kind is FaultKind.KILL]
    assert 0.1 < sum(strike.into_recovery for strike in kills) / len(kills) < 0.3


def test_one_in_four_pauses_lasts_until_after_the_process_is_replaced() -> None:
    plan = list(islice(strikes(1, (FaultKind.PAUSE,), ROLES), 40))
    assert sum(strike.lasts_s > HUNG_AFTER_S + 2 for strike in plan) == 10
    assert any(strike.lasts_s > HUNG_AFTER_S for strike in plan[:4])


def test_a_plan_of_one_kind_and_one_role_needs_no_other() -> None:
    plan = list(islice(strikes(1, (FaultKind.KILL,), (Role.BROKER,)), 10))
    assert {strike.what for strike in plan} == {"kill broker"}
