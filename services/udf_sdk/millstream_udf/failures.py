"""The outcomes of records that were not processed normally, from exceptions. Pure.

Above it: `outputs` and `execution`. Below it: `cancellation`. A failure is reported with the user's own traceback,
without the frames of this package, which users cannot change.
"""

from __future__ import annotations

import asyncio
import bdb
import importlib
import os
import traceback
from types import TracebackType

from millstream_udf import debugging
from millstream_udf.cancellation import failure_in_task
from millstream_udf.misfits import MISFIT_CODE, BadOutput, Misfit
from millstream_udf.values import DeadLetter, Drop, Fallback, Retry
from millstream_udf.wire.udf.v1 import udf_pb2

DETAIL_BYTES_MAX = 16 * 1024
"""Maximum bytes of one traceback; its end is kept, which matters most."""
DETAILS_BYTES_MAX = 1024 * 1024
"""Maximum bytes of all tracebacks in an answer. Further failures are reported without one."""

# Between a function and its caller: this package, and the import of the user's module.
_NOT_THE_USERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen importlib", importlib.__file__)


FAILURES = BaseException
"""Exceptions of users' functions: of any class. A panic of a library in Rust is not an `Exception`, and a function that
calls `sys.exit` or raises `KeyboardInterrupt` has failed, because the process does not belong to it. `failure` tells
them from those that are not the function's."""


class Gone(BaseException):
    """The parts ended in the middle of a group, whose results are not needed. Not an `Exception`, so that functions
    that catch these do not catch it."""


def failure(error: BaseException) -> BaseException:
    """The failure of users' code from which an exception came. Raises `error` again if it is not one: if it cancels the
    running task, ends the parts of a group, or is Ctrl-C in a test."""
    if isinstance(error, asyncio.CancelledError):
        return failure_in_task(error)
    if isinstance(error, Gone) or _is_interrupt(error):
        raise error
    return error


def _is_interrupt(error: BaseException) -> bool:
    """Whether a signal has raised it. In a sidecar, signals never reach the thread of the function."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and innermost.tb_frame.f_code.co_filename == asyncio.runners.__file__


class HeldUp(Exception):
    """The result of a record that was not processed, because an earlier record of its key has failed or is to be
    retried."""


class Outcomes:
    """Collects the outcomes of one call."""

    def __init__(self, *, sink: bool = False) -> None:
        self._sink = sink
        self._details_left = DETAILS_BYTES_MAX
        self.items: list[udf_pb2.Outcome] = []

    def add(self, index: int, error: BaseException) -> None:
        """Add that record `index` of the call ended with `error`."""
        match error:
            case Retry():
                outcome = udf_pb2.Outcome(
                    index=index, result=udf_pb2.Outcome.RESULT_RETRY, reason=error.reason, delay_us=error.delay_us
                )
            case DeadLetter():
                outcome = udf_pb2.Outcome(index=index, result=udf_pb2.Outcome.RESULT_DEAD_LETTER, reason=error.reason)
            case Misfit():
                # It would not fit at another attempt either.
                outcome = udf_pb2.Outcome(
                    index=index, result=udf_pb2.Outcome.RESULT_DEAD_LETTER, reason=str(error), code=MISFIT_CODE
                )
            case Drop():
                outcome = udf_pb2.Outcome(index=index, result=udf_pb2.Outcome.RESULT_DROP, reason=error.reason)
            case HeldUp():
                outcome = udf_pb2.Outcome(index=index, result=udf_pb2.Outcome.RESULT_HELD_UP)
            case Fallback() if self._sink:
                outcome = udf_pb2.Outcome(index=index, result=udf_pb2.Outcome.RESULT_FALLBACK, reason=error.reason)
            case Fallback():
                outcome = self._failed(
                    index, BadOutput("Fallback is only for sinks; in a map raise DeadLetter(reason)")
                )
            case _:
                outcome = self._failed(index, error)
        self.items.append(outcome)

    def _failed(self, index: int, error: BaseException) -> udf_pb2.Outcome:
        detail = describe(error) if self._details_left > 0 else ""
        self._details_left -= len(detail)
        return udf_pb2.Outcome(index=index, result=udf_pb2.Outcome.RESULT_ERROR, reason=summary(error), detail=detail)


def summary(error: BaseException) -> str:
    """The error on one line."""
    if isinstance(error, BadOutput | Misfit):
        return str(error)
    if isinstance(error, SystemExit):
        return (
            f"the function called sys.exit({'' if error.code is None else repr(error.code)}): raise an exception "
            "instead"
        )
    if isinstance(error, bdb.BdbQuit):
        return f"pdb cannot be used here: {debugging.advice()}"
    return "".join(traceback.format_exception_only(error)).strip().replace("\n", " | ")[:1000]


def describe(error: BaseException) -> str:
    """The user's traceback."""
    if isinstance(error, BadOutput | Misfit):
        return ""
    text = "".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__))).rstrip()
    return text if len(text) <= DETAIL_BYTES_MAX else "..." + text[-DETAIL_BYTES_MAX:]


def error_text(error: BaseException) -> str:
    """Message first, then the user's traceback."""
    detail = describe(error)
    return f"{summary(error)}\n{detail}" if detail else summary(error)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        trace = trace.tb_next
    return trace
