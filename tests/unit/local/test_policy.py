"""What becomes of a run when one of its processes ends."""

import pytest

from millstream.local.policy import (
    FAILURES_MAX,
    KILLS_MAX,
    STEADY_S,
    Finished,
    Restart,
    RestartPolicy,
    StopRun,
    Verdict,
    backoff_s,
    describe_exit,
)


def judge(
    policy: RestartPolicy, code: int, *, ended: bool = False, progressed: bool = False, ran_s: float = 1
) -> Verdict:
    return policy.judge(code, lanes_ended=ended, progressed=progressed, ran_s=ran_s)


def test_a_replica_whose_lanes_have_ended_has_finished() -> None:
    assert judge(RestartPolicy(), 0, ended=True) == Finished()


def test_a_replica_that_somebody_else_told_to_stop_is_started_again() -> None:
    assert judge(RestartPolicy(), 0) == Restart(0.1)


@pytest.mark.parametrize("code", [2, 3, 5])
def test_the_users_fault_and_damage_stop_the_run_at_once(code: int) -> None:
    verdict = judge(RestartPolicy(), code, progressed=True, ran_s=1000)
    assert verdict == StopRun(code, f"ended with exit code {code}")


@pytest.mark.parametrize(
    ("code", "attempts"), [(-9, KILLS_MAX), (-11, KILLS_MAX), (4, FAILURES_MAX), (70, FAILURES_MAX)]
)
def test_a_process_that_never_gets_on_is_given_up(code: int, attempts: int) -> None:
    policy = RestartPolicy()
    verdicts = [judge(policy, code) for _ in range(attempts)]
    assert verdicts[:-1] == [Restart(backoff_s(number)) for number in range(1, attempts)]
    assert isinstance(verdicts[-1], StopRun)
    assert verdicts[-1].exit_code == (4 if code == 4 else 70)
    assert f"{attempts} times in a row" in verdicts[-1].reason


def test_a_process_that_gets_on_between_its_deaths_is_started_again_for_ever() -> None:
    policy = RestartPolicy()
    assert all(judge(policy, -9, progressed=True) == Restart(0.1) for _ in range(1000))


def test_a_process_that_has_nothing_to_do_and_runs_long_counts_as_well() -> None:
    policy = RestartPolicy()
    assert all(judge(policy, -9, ran_s=STEADY_S) == Restart(0.1) for _ in range(100))


def test_pauses_double_up_to_the_last() -> None:
    assert [backoff_s(number) for number in range(1, 9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_exits_in_words() -> None:
    assert describe_exit(-9) == "was ended by SIGKILL"
    assert describe_exit(4) == "ended with exit code 4"
    assert describe_exit(0) == "ended before its lanes had"
