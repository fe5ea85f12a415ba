"""The headers of a message that carry parts of its record besides the value. Pure.

Above it: sinks whose target has messages with headers, each in its own form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

KEYS = "Millstream-Keys"
EVENT_TIME = "Millstream-Event-Time"
RECORD_ID = "Millstream-Id"
OURS = "millstream-"
"""Prefix of Millstream's own headers, in lower case; a record's headers with this prefix are omitted."""


def keys_text(keys: Sequence[bytes]) -> str:
    """A record's keys as a JSON array."""
    return json.dumps([key.decode(errors="replace") for key in keys], ensure_ascii=True)


def time_text(time_us: int) -> str:
    """An event time in milliseconds."""
    return str(time_us // 1000)


def message_id(run: str, record_id: str, bytes_max: int) -> str:
    """Id of a record in a run, the same at every attempt; a digest if it would be longer than `bytes_max`."""
    whole = f"{run}/{record_id}"
    if len(whole.encode()) <= bytes_max:
        return whole
    return blake2b(whole.encode(), digest_size=32).hexdigest()
