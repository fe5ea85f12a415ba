"""One value of a table as JSON, which lacks some of its types. Pure."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, time
from typing import Any


def as_json(value: object) -> bytes:
    """One value, in the forms of `rows_as_json` for types that JSON lacks."""
    return json.dumps(_finite(value), default=_plain, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): _finite(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    return value


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return moment.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)
