"""Parses lines that a user's program writes into log records. Pure.

Above it: the vertex process, which logs them. Below it: the format of a line, which docs/udf-protocol.md ("Logs")
describes. A line in another format is plain text, at level info.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from millstream.json_parser import parse_json
from millstream_udf.log_form import MARKER, OF_EVERY_RECORD

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
_NOT_FIELDS = {MARKER, "time", "level", "message", "logger"}


@dataclass(frozen=True, slots=True)
class ProgramLine:
    """A line as a log record."""

    level: int
    message: str
    logger: str
    """Empty if the program does not name one."""
    created_s: float | None
    """Seconds since the epoch; None if the program does not give the time."""
    fields: dict[str, Any]
    """Everything else: lane, attempt, trace_id, exception, and what the author added."""

    def record(self, default_logger: str, more: dict[str, Any]) -> logging.LogRecord:
        """The log record, with the fields and `more` as extra attributes."""
        record = logging.LogRecord(self.logger or default_logger, self.level, "", 0, self.message, None, None)
        if self.created_s is not None:
            record.created = self.created_s
        for name, value in {**self.fields, **more}.items():
            record.__dict__[f"{name}_" if name in OF_EVERY_RECORD else name] = value
        return record


def parse_line(line: str) -> ProgramLine:
    """The log record in a line, or the line as text."""
    entry = _entry(line)
    if entry is None:
        return ProgramLine(logging.INFO, line, "", None, {})
    return ProgramLine(
        level=_LEVELS.get(str(entry.get("level", "info")).lower(), logging.INFO),
        message=str(entry.get("message", "")),
        logger=str(entry.get("logger", "")),
        created_s=_seconds(entry.get("time")),
        fields={name: value for name, value in entry.items() if name not in _NOT_FIELDS},
    )


def readable(line: str) -> list[str]:
    """The line for people: for a line in our format, its message and exception."""
    entry = _entry(line)
    if entry is None:
        return [line]
    return [str(entry.get("message", "")), *str(entry.get("exception", "")).splitlines()]


def _entry(line: str) -> dict[str, Any] | None:
    # Most lines are text: parsing each as JSON would cost as much as the rest of the work on it.
    if not line.startswith("{") or MARKER not in line:
        return None
    try:
        entry = parse_json(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and entry.get(MARKER) == 1 else None


def _seconds(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        # Not later than the line was read: the program uses this machine's clock, and the order of the log matters.
        return min(moment.timestamp(), time.time()) if moment.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None
