"""Which of the calls that have a function alone is the cause when its process ends."""

from __future__ import annotations

from contextlib import suppress

from millstream.udf.lives import Lives


class LostError(Exception):
    """The stream of a call has ended."""


async def lost_alone(lives: Lives) -> bool:
    """A call that has the function alone and gets no answer: whether the end of the process is certainly its doing."""
    with suppress(LostError):
        async with lives.alone(1, "a call"):
            cause = lives.is_cause_alone(lives.number)
            raise LostError
    return cause


async def test_a_call_that_follows_in_a_process_that_may_have_ended_is_not_its_cause() -> None:
    lives = Lives()
    lives.begin()
    assert await lost_alone(lives)
    # The process has ended, which nothing has noticed yet: another lane's call is sent to it.
    assert not await lost_alone(lives)
    lives.begin()
    assert await lost_alone(lives)


async def test_a_call_that_follows_an_answer_is_the_cause() -> None:
    lives = Lives()
    lives.begin()
    async with lives.alone(1, "a call"):
        pass
    assert await lost_alone(lives)
