"""The meaning of Spark's exceptions: their cause, in words for people.

Above it: `jobs`. Below it: PySpark's exceptions, of classic sessions and of Spark Connect. Everything that the rows of
a window or the user's code can cause is a `WindowError`, and the window can be found by computing fewer windows. A lost
worker (`WorkerLostError`) may be the fault of a window or of another process on the machine, and a failure that Spark
does not explain (`JobFailedError`) may be that of a window, too: `jobs` finds out. Any other error concerns the whole
job.

An error in a subquery, or on the side of a join that is broadcast, is raised in another thread: what the job raises has
it as its cause. So the causes are looked at, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, error_of

_POSITION = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_CONDITION = re.compile(r"^\s*\[([A-Z0-9_.]+)\]\s*")
_OURS = re.compile(r"^millstream(?:_reduce)?\.[\w.]*?(\w+): (.*)", re.MULTILINE)
_NOTED_CODE = re.compile(r"^\s*(MS-\d{4})$", re.MULTILINE)
_STACK = re.compile(r"(?:Fatal Python error|Current thread|Thread) .*?(?=\n\s*at |\Z)", re.DOTALL)
"""What Python's fault handler writes when a signal ends a worker."""
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):.*?(?=\n\s*at [\w.$]+/?[\w.$]*\(|\n\nJVM stacktrace:|\Z)", re.DOTALL
)
"""Of Python. The stack of Java that follows it is not part of it."""
_FRAME = re.compile(r"[ |]*  File \"")
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): ([^\n]+)")
_CAUSED_BY = re.compile(r"^Caused by: ([^\n]+)", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^(?:: )?(?:[a-z]\w*\.)+")
_CLASSES = re.compile(r"^(?:[\w.$]+: )+(?=\[)")
_STATE_IN_TEXT = re.compile(r"SQLSTATE: (\w{5})")
_USERS_STATES = ("07", "21", "22", "23", "38", "42", "P0001")
"""Classes of SQLSTATE about data and expressions: cardinality, data exception, constraint, external routine, syntax or
access, raise_error."""
_ROUTINES_STATE = "38"
"""The class of what Python raised in a task."""
_CAUSES_MAX = 20
_LOST = re.compile(r"(?:\w+: )?(?:Python worker (?:exited unexpectedly|failed to connect back)|ExecutorLostFailure)")
"""How the message begins if a process of a task has died. Users' messages may contain such words, but begin
differently."""
_AWAY = ("Connection refused", "SparkContext was shut down", "has been stopped", "UNAVAILABLE")
_CANCELLED = ("[SPARK_JOB_CANCELLED]", "[OPERATION_CANCELED]", "InterruptedException")
"""In a job whose result is no longer wanted."""
_OF_THE_MACHINE = ("No space left on device", "Disk quota exceeded", "Too many open files", "Cannot run program")
"""What no window can be the reason of."""


class WindowError(Exception):
    """A window of a job cannot be computed, because of its data or the user's code."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class WorkerLostError(RetryLaterError):
    """A process that computed a task has died: a Python worker, or an executor of a cluster."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(codes.SPARK_WORKER_LOST, reason)
        self.detail = detail
        """Where it was, as far as it could say."""


class JobFailedError(RetryLaterError):
    """A job has failed, and Spark does not say that a window or the machine is the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(codes.SPARK_JOB, f"a Spark job failed: {reason}")
        self.reason = reason


class _Cause(NamedTuple):
    """An error of Spark, or one that caused it."""

    state: str
    """SQLSTATE; empty if it has none."""
    message: str
    fragment: str
    """The expression that failed, as written in the statement; empty if Spark does not say."""


def meaning(error: Exception, query: str = "") -> WindowError | MillstreamError:
    """The meaning of the error of a failed job. `query`: the user's text if it is SQL."""
    if isinstance(error, MillstreamError):
        return error
    text = str(error)
    if (ours := _OURS.search(text)) is not None:
        return _raised_in_task(ours[1], ours[2].strip(), text[ours.end() :])
    traceback = _TRACEBACK.search(text)
    for one in _causes(error, text):
        if one.state.startswith(_ROUTINES_STATE) and traceback is not None:
            break
        if one.state.startswith(_USERS_STATES):
            return WindowError(_in_query(sentence(one.message, positions=False), one.fragment, query))
    reason = cause(text)
    if _LOST.match(reason) is not None:
        stack = _STACK.search(text)
        return WorkerLostError(f"a process that computed a Spark task has died: {reason}", stack[0] if stack else "")
    if traceback is not None:
        return WindowError(_raised(traceback[0]), traceback[0].rstrip())
    if any(word in text for word in _AWAY) or isinstance(error, (ConnectionError, EOFError)):
        return RetryLaterError(codes.SPARK_LOST, f"Spark went away in the middle of a job: {reason}")
    if "Cannot run program" in reason:
        reason += ". Spark's Python workers run the Python that `spark.pyspark.python` (`spec.spark.conf`) names"
    if any(words in reason for words in (*_CANCELLED, *_OF_THE_MACHINE)):
        return RetryLaterError(codes.SPARK_JOB, f"a Spark job failed: {reason}")
    return JobFailedError(reason)


def _raised_in_task(name: str, message: str, rest: str) -> MillstreamError:
    """One of our errors, of which Spark passes on only the traceback: the message is followed by its notes."""
    noted = _NOTED_CODE.search(rest)
    written = noted[1] if noted is not None else ""
    found = error_of(f"{name} {written}", message)
    if found is not None:
        return found
    # Of a class of this package, which only those that raise it know: the job is tried again.
    code = codes.find(written)
    if code is None or code.exit_code != RetryLaterError.exit_code:
        code = codes.SPARK_JOB
    return RetryLaterError(code, message)


def sentence(text: str, first_line_number: int = 1, *, positions: bool = True) -> str:
    """The message of Spark's exception in short: where it is, and what is wrong. Plans and hints are left out.

    `first_line_number`: number of the line of the statement on which the user's text begins. Without `positions` none
    is given: the statement is not the user's.
    """
    position = _POSITION.search(text) if positions else None
    message = _STATE.sub("", _CONDITION.sub("", text.strip())).strip()
    message = " ".join(message.split())
    # Switching the check off for the whole session is not advice for one query.
    message = re.sub(r" ?If necessary,? set .*? to bypass this error\.", "", message)
    if position is None:
        return message
    return f"line {int(position[1]) - first_line_number + 1}, column {int(position[2]) + 1}: {message}"


def with_suggestion(message: str, functions: list[str]) -> str:
    """For an unknown function: names that resemble it."""
    unknown = re.search(r"Cannot resolve routine `([^`]+)`", message)
    if unknown is None:
        return message
    close = get_close_matches(unknown[1].lower(), functions, 3)
    meant = f" Did you mean one of the following? [{', '.join(f'`{name}`' for name in close)}]." if close else ""
    return f"{message.partition(' on search path')[0]}.{meant}"


def cause(text: str) -> str:
    """The cause from a job's exception: what went wrong in the task or underneath, rather than that a job or a call
    failed."""
    task = _LOST_TASK.search(text)
    causes = _CAUSED_BY.findall(text)
    if task is not None and (": " in task[1] or not causes):
        # Otherwise it is only the class of what wraps the cause.
        causes = [task[1]]
    lines = causes[-1:] or [line for line in text.splitlines() if line.strip()]
    return _JAVA_CLASS.sub("", lines[0].strip()) if lines else "no message"


def _in_query(message: str, fragment: str, query: str) -> str:
    """The message with the place in the user's query. Many windows share a statement that was made of it, in which what
    the user wrote stands elsewhere, but as it was."""
    if not fragment or fragment not in query:
        return message
    if query.count(fragment) > 1:
        return f"in `{fragment}`: {message}"
    before = query[: query.index(fragment)]
    return f"line {before.count(chr(10)) + 1}, column {len(before.rpartition(chr(10))[2]) + 1}: {message}"


def _causes(error: Exception, text: str) -> Iterator[_Cause]:
    """The error and what caused it, as far as Spark says: in classic sessions as objects of Java, otherwise in its
    text."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        yield _Cause(_asked(error, "getSqlState") or "", text, _fragment(_asked(error, "getQueryContext") or ()))
        for line in _CAUSED_BY.findall(text):
            if (found := _STATE_IN_TEXT.search(line)) is not None:
                yield _Cause(found[1], _CLASSES.sub("", line), "")
    for _ in range(_CAUSES_MAX):
        if java is None:
            return
        yield _java_cause(java)
        java = java.getCause()


def _asked(error: Exception, name: str) -> Any:
    method = getattr(error, name, None)
    return method() if callable(method) else None


def _java_cause(java: Any) -> _Cause:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        state, contexts = java.getSqlState() or "", java.getQueryContext()
    except Py4JError:
        # It is not one of Spark's own.
        return _Cause("", "", "")
    return _Cause(str(state), str(java.getMessage() or ""), _fragment(contexts or ()))


def _fragment(contexts: Iterable[Any]) -> str:
    """The expression that failed, as written in the statement; empty if Spark does not say."""
    for context in contexts:
        if str(context.contextType()).endswith("SQL"):
            return str(context.fragment())
    return ""


def _raised(traceback: str) -> str:
    """What Python raised, in the words of its class and message: the line after the last frame and its source."""
    lines = [line for line in traceback.splitlines() if line.strip(" |+-")]
    frames = [at for at, line in enumerate(lines) if _FRAME.match(line)]
    after = (line for line in lines[frames[-1] + 1 :] if not re.match(r"[ |]*    ", line)) if frames else iter(())
    return next(after, lines[-1]).strip(" |")
