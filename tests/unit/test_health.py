"""How long another process has been silent, as one sees it that may have been stopped itself."""

from millstream.health import LOOK_INTERVAL_S, Silence


def test_silence_lasts_until_something_is_heard() -> None:
    silence = Silence(100.0)
    looks = [silence.look(100.0 + n * LOOK_INTERVAL_S) for n in range(1, 11)]
    assert looks[-1] == 10 * LOOK_INTERVAL_S
    silence.on_answer()
    assert silence.look(100.0 + 11 * LOOK_INTERVAL_S) == LOOK_INTERVAL_S


def test_time_in_which_the_listener_did_not_run_is_not_silence() -> None:
    silence = Silence(100.0)
    silence.look(100.0 + LOOK_INTERVAL_S)
    # The machine was suspended, or the listener stopped.
    assert silence.look(10_000.0) <= 3 * LOOK_INTERVAL_S
