"""The outcomes that a user's function returns for records it did not write, converted for the delivery. Pure.

Above it: the lanes of user-defined sinks. Below it: nothing.
"""

from __future__ import annotations

from millstream import codes
from millstream.naming import MISFIT, reason_and_detail
from millstream.udf.answers import Outcome, Result, SinkAnswer
from millstream_writer.sink import SinkFailure

FAILED = "function failed"
"""The reason under which a record is counted if the function returned an error. The message has the error itself."""
_NO_REASON = "no reason given"


def failures_of(answer: SinkAnswer, records: int) -> list[SinkFailure]:
    """The failures of the records that an answer does not count as written."""
    if answer.error:
        return [SinkFailure(row, FAILED, retryable=True, detail=answer.error) for row in range(records)]
    return [failure_of(outcome) for outcome in answer.outcomes]


def failure_of(outcome: Outcome) -> SinkFailure:
    """The failure of the record with this outcome."""
    row = outcome.index
    given, detail = reason_and_detail(outcome.reason, outcome.detail)
    reason = given or _NO_REASON
    if outcome.result == Result.RETRY:
        return SinkFailure(row, reason, retryable=True, attempted=False, asked=True, delay_s=outcome.delay_us / 1e6)
    if outcome.code == codes.RECORD_MISFIT.number:
        # All misfits are counted under one reason, whatever is wrong with each.
        return SinkFailure(row, MISFIT, retryable=False, detail=reason, code=codes.RECORD_MISFIT)
    if outcome.result == Result.DEAD_LETTER:
        return SinkFailure(row, reason, retryable=False, detail=detail)
    if outcome.result == Result.DROP:
        return SinkFailure(row, reason, retryable=False, drop=True)
    if outcome.result == Result.FALLBACK:
        return SinkFailure(row, reason, retryable=False, fallback=True, detail=detail)
    text = f"{given}\n{detail}" if detail else given
    return SinkFailure(row, FAILED, retryable=True, attempted=outcome.attempts, detail=text)
