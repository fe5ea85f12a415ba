"""Logs: one JSON object per line on stderr, or plain lines on a terminal.

Above it: every process, once, at its start. Below it: the standard library. It does not depend on what is logged: the
`extra` of a log record becomes fields.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar

from millstream.errors import MillstreamError
from millstream.printable import printable
from millstream.record import ReplicaId

_T = TypeVar("_T")

_replica: ContextVar[ReplicaId | None] = ContextVar("millstream_replica", default=None)
_lane: ContextVar[str] = ContextVar("millstream_lane", default="")
_trace_id: ContextVar[str] = ContextVar("millstream_trace_id", default="")

_OWN = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime", "taskName"}
"""Attributes that every log record has; all others are extras."""

NOTICE = "millstream_notice"
"""Field that marks a line for the person who watches a run, although it is not a warning."""


def configure_logging(
    pipeline: str,
    vertex: str,
    replica: int = 0,
    level: str = "INFO",
    *,
    stream: TextIO | None = None,
    human: bool | None = None,
) -> None:
    """Sends the process's logs to `stream` (default: stderr). A second call replaces the first.

    `pipeline` and `vertex` may be empty if there is none (yet). A process with several replicas distinguishes them by
    `log_replica`. `human` selects plain lines; None: plain lines if the stream is a terminal.
    """
    target = stream or sys.stderr
    handler = _Handler(target)
    plain = target.isatty() if human is None else human
    handler.setFormatter(_PlainFormatter(vertex, replica) if plain else _JsonFormatter(pipeline, vertex, replica))
    root = logging.getLogger()
    for other in [other for other in root.handlers if isinstance(other, _Handler)]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())


def log_replica(replica: ReplicaId) -> AbstractContextManager[None]:
    """Adds the vertex and the replica to log lines of this task and of the tasks that it starts."""
    return _added(_replica, replica)


def log_lane(key: str) -> AbstractContextManager[None]:
    """Adds the lane to log lines of this task and of the tasks that it starts."""
    return _added(_lane, key)


def log_trace(trace_id: str) -> AbstractContextManager[None]:
    """Adds the trace id to log lines of this task."""
    return _added(_trace_id, trace_id)


@contextmanager
def _added(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def entry_of(record: logging.LogRecord, **fixed: Any) -> dict[str, Any]:
    """A log record as an object: what a line of a log has. `fixed`: the same in all lines of a process, unless a record
    says something else."""
    return {
        "time": _time_of(record).isoformat(timespec="microseconds"),
        "level": record.levelname.lower(),
        "message": record.getMessage(),
        "logger": record.name,
        **fixed,
        **fields_of(record),
    }


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a log record in addition to its message: replica, lane and trace of the task that logs it, the code
    of an error, and its extras."""
    fields: dict[str, Any] = {}
    if (replica := _replica.get()) is not None:
        fields["vertex"], fields["replica"] = replica.vertex, replica.number
    for name, variable in (("lane", _lane), ("trace_id", _trace_id)):
        if value := variable.get():
            fields[name] = value
    if (code := _code_of(record)) is not None:
        fields["code"] = code
    return fields | _extras(record)


class _Handler(logging.StreamHandler[TextIO]):
    """A subclass, so that a second call of `configure_logging` recognizes our handler."""


class _JsonFormatter(logging.Formatter):
    def __init__(self, pipeline: str, vertex: str, replica: int) -> None:
        super().__init__()
        self._fixed: dict[str, Any] = {"pipeline": pipeline} if pipeline else {}
        if vertex:
            self._fixed |= {"pipeline": pipeline, "vertex": vertex, "replica": replica}

    def format(self, record: logging.LogRecord) -> str:
        line = entry_of(record, **self._fixed)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return printable(json.dumps(line, default=str, ensure_ascii=False))


class _PlainFormatter(logging.Formatter):
    def __init__(self, vertex: str, replica: int) -> None:
        super().__init__()
        self._place = f" {vertex}/{replica}" if vertex else ""

    def format(self, record: logging.LogRecord) -> str:
        time = _time_of(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        current = _replica.get()
        place = self._place if current is None else f" {current.vertex}/{current.number}"
        lane = f" {_lane.get()}" if _lane.get() else ""
        line = f"{time} {record.levelname:<7}{place}{lane} {record.getMessage()}"
        extras = ({"code": code} if (code := _code_of(record)) is not None else {}) | _extras(record)
        line += "".join(f" {name}={value}" for name, value in extras.items())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return printable(line)


def _time_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, tz=UTC)


def _code_of(record: logging.LogRecord) -> str | None:
    """The code of our error that is logged, as an argument of the message or with its stack trace."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    return next((error.code.id for error in (*arguments, raised) if isinstance(error, MillstreamError)), None)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _OWN}
