"""The outcomes of records that were not processed normally, from exceptions. Pure.

Above it: `outputs` and `execution`. Below it: nothing. A failure is reported with the user's own traceback, without the
frames of this package, which users cannot change.
"""

from __future__ import annotations

import bdb
import importlib
import os
import traceback
from types import TracebackType

from millstream_udf import debugging
from millstream_udf.misfits import MISFIT_CODE, Misfit
from millstream_udf.values import DeadLetter, Drop, Fallback, Retry
from millstream_udf.wire.udf.v1 import udf_pb2

DETAIL_BYTES_MAX = 16 * 1024
"""Maximum bytes of one traceback; its end is kept, which matters most."""
DETAILS_BYTES_MAX = 1024 * 1024
"""Maximum bytes of all tracebacks in an answer. Further failures are reported without one."""

# Between a function and its caller: this package, and the import of the user's module.
_NOT_THE_USERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen importlib", importlib.__file__)


FAILURES = (Exception, SystemExit)
"""Exceptions of users' functions. A call of `sys.exit` counts as a failure of the input, because the process does not
belong to the function."""


class BadOutput(TypeError):
    """A function returned a value that cannot be sent. This package raises it, so its traceback is not shown."""


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
    trimmed = _users_part(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, trimmed)).rstrip()
    return text if len(text) <= DETAIL_BYTES_MAX else "..." + text[-DETAIL_BYTES_MAX:]


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        trace = trace.tb_next
    return trace
