"""A function's log: lines from which Millstream reads level and fields, or plain text if the function is run by hand.

Above it: the server, once, before the function is imported. Below it: standard error. The form of a line is part of the
function protocol (docs/udf-protocol.md, "Logs").
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from millstream_udf import output_prefix
from millstream_udf.context import CURRENT
from millstream_udf.log_form import LEVEL_VARIABLE, MARKER, OF_EVERY_RECORD

_LINE_BYTES_MAX = 60 * 1024
"""Longer texts are truncated: Millstream accepts lines of up to 64 KiB."""
_TEXT_BYTES_MAX = 16 * 1024
"""Maximum length of the message, the exception and each field, if the whole would exceed a line."""
_KNOWN_ELSEWHERE = ("pipeline", "vertex", "replica")
"""Fields that the process that reads the lines adds."""


def configure() -> None:
    """Make the root logger write to standard error, unless it has been configured."""
    root = logging.getLogger()
    if root.handlers:
        return
    level = os.environ.get(LEVEL_VARIABLE, "")
    if not level:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    root.addHandler(handler)
    named = logging.getLevelNamesMapping().get(level.upper())
    root.setLevel(logging.INFO if named is None else named)


class _LineFormatter(logging.Formatter):
    """One JSON object per record, its exception included."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            MARKER: 1,
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
        }
        if (context := CURRENT.get()) is not None:
            line.update(context.log_fields())
        if group := output_prefix.current():
            line["group"] = group
        line.update({name: value for name, value in record.__dict__.items() if name not in OF_EVERY_RECORD})
        for name in _KNOWN_ELSEWHERE:
            line.pop(name, None)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        text = json.dumps(line, default=str)
        if len(text) > _LINE_BYTES_MAX:
            text = json.dumps({name: _short(value) for name, value in line.items()})
        if len(text) > _LINE_BYTES_MAX:
            # Many long fields: only the fields of every line are kept.
            kept = (MARKER, "time", "level", "message", "logger", "exception")
            text = json.dumps({name: _short(line[name]) for name in kept if name in line})
        return text


def _short(value: object) -> object:
    """A value, truncated if it is long, and as JSON if it is not a plain value."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(json.dumps(text)) <= _TEXT_BYTES_MAX:
        return text
    # A character takes up to twelve bytes of JSON.
    return text[: _TEXT_BYTES_MAX // 12] + f"... ({len(text):,} characters)"
