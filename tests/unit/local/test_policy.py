"""What becomes of a run when one of its processes ends."""

import pytest

from millstream import codes
from millstream.codes.code import Code
from millstream.limits import KILLS_MAX
from millstream_runner.local.policy import (
    FAILURES_MAX,
    HANGS_MAX,
    STEADY_S,
    Completion,
    ProcessEnding,
    Restart,
    RestartPolicy,
    StopRun,
    Verdict,
)

HUNG = "did not answer for 12 s"
OVERSIZE = "took 2.0 GiB of memory: it was killed"

PAUSES = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * KILLS_MAX]


def judge(
    policy: RestartPolicy,
    code: int,
    *,
    hung: str = "",
    oversize: str = "",
    ended: bool = False,
    progressed: bool = False,
    well_s: float = 1,
) -> Verdict:
    return policy.judge(ProcessEnding(code, hung, oversize), lanes_ended=ended, progressed=progressed, well_s=well_s)


def test_a_replica_whose_lanes_have_ended_has_finished() -> None:
    assert judge(RestartPolicy(), 0, ended=True) == Completion()


def test_a_replica_that_somebody_else_told_to_stop_is_started_again() -> None:
    assert judge(RestartPolicy(), 0) == Restart(0.1)


@pytest.mark.parametrize("code", [2, 3, 5])
def test_the_users_fault_and_damage_stop_the_run_at_once(code: int) -> None:
    verdict = judge(RestartPolicy(), code, progressed=True, well_s=1000)
    assert verdict == StopRun(code, f"ended with exit code {code}", None)


@pytest.mark.parametrize(
    ("code", "hung", "attempts", "exit_code", "error_code"),
    [
        # A user who kills, or a machine without memory: not a defect of ours.
        (-9, "", KILLS_MAX, 4, codes.PROCESS_KILLED),
        (-15, "", KILLS_MAX, 4, codes.PROCESS_KILLED),
        (0, "", KILLS_MAX, 4, codes.PROCESS_KILLED),
        # A crash of its own.
        (-11, "", FAILURES_MAX, 70, codes.PROCESS_CRASHES),
        (70, "", FAILURES_MAX, 70, codes.PROCESS_CRASHES),
        # What these are the process has said itself.
        (4, "", FAILURES_MAX, 4, None),
        # Another process takes its lanes over, again and again.
        (6, "", FAILURES_MAX, 6, None),
        (-9, HUNG, HANGS_MAX, 70, codes.PROCESS_HANGS),
    ],
)
def test_a_process_that_never_gets_on_is_given_up(
    code: int, hung: str, attempts: int, exit_code: int, error_code: Code | None
) -> None:
    policy = RestartPolicy()
    verdicts = [judge(policy, code, hung=hung) for _ in range(attempts)]
    assert verdicts[:-1] == [Restart(pause_s) for pause_s in PAUSES[: attempts - 1]]
    assert isinstance(verdicts[-1], StopRun)
    assert verdicts[-1].exit_code == exit_code
    assert verdicts[-1].code is error_code
    assert error_code is None or error_code.exit_code == exit_code
    assert f"{attempts} times without any progress" in verdicts[-1].reason


def test_kills_from_outside_do_not_count_as_failures() -> None:
    policy = RestartPolicy()
    for _ in range(FAILURES_MAX - 1):
        assert isinstance(judge(policy, 4), Restart)
        assert all(isinstance(judge(policy, -9), Restart) for _ in range(5))
    assert isinstance(judge(policy, 4), StopRun)


def test_a_process_that_gets_on_between_its_deaths_is_started_again_for_ever() -> None:
    policy = RestartPolicy()
    assert all(judge(policy, -9, progressed=True) == Restart(0.1) for _ in range(1000))


def test_a_process_that_has_nothing_to_do_and_runs_long_counts_as_well() -> None:
    policy = RestartPolicy()
    assert all(judge(policy, -9, well_s=STEADY_S) == Restart(0.1) for _ in range(100))


def test_a_process_that_is_hung_as_often_as_it_is_started_was_never_well() -> None:
    policy = RestartPolicy()
    verdicts = [judge(policy, -9, hung=HUNG, well_s=0) for _ in range(HANGS_MAX)]
    assert isinstance(verdicts[-1], StopRun)


def test_a_process_that_takes_too_much_memory_again_at_once_is_given_up_although_others_in_it_progress() -> None:
    policy = RestartPolicy()
    verdicts = [judge(policy, -9, oversize=OVERSIZE, progressed=True) for _ in range(FAILURES_MAX)]
    assert verdicts[:-1] == [Restart(pause_s) for pause_s in PAUSES[: FAILURES_MAX - 1]]
    given_up = verdicts[-1]
    assert isinstance(given_up, StopRun)
    assert (given_up.exit_code, given_up.code) == (4, codes.PROCESS_TOO_LARGE)
    assert given_up.reason == f"{OVERSIZE}, {FAILURES_MAX} times in a row"
    assert "--worker-memory" in given_up.advice
    # One that grows slowly is replaced for ever.
    policy = RestartPolicy()
    assert all(judge(policy, -9, oversize=OVERSIZE, well_s=STEADY_S) == Restart(0.1) for _ in range(100))


def test_endings_in_words() -> None:
    assert ProcessEnding(-9).text == "was killed from outside (SIGKILL; was the machine out of memory?)"
    assert ProcessEnding(-15).text == "was ended from outside by signal SIGTERM"
    assert ProcessEnding(-11).text == "was ended by signal SIGSEGV"
    assert ProcessEnding(-77).text == "was ended by signal 77"
    assert ProcessEnding(4).text == "ended with exit code 4"
    assert ProcessEnding(0).text == "ended before its lanes had ended"
    assert ProcessEnding(-9, HUNG).text == "did not answer for 12 s: it was killed"
    assert ProcessEnding(-9, oversize=OVERSIZE).text == OVERSIZE
