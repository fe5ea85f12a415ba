"""Where the first run of a source begins, for sources whose records are stored in the order of time. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from millstream import codes
from millstream.spec.values import After, problem

EARLIEST, LATEST = "earliest", "latest"


def start_time(written: str) -> datetime | None:
    """The time in a `start`; None if it is a keyword. Raises `ValueError`."""
    if written in (EARLIEST, LATEST):
        return None
    time = datetime.fromisoformat(written)
    if time.tzinfo is None:
        raise ValueError(written)
    return time


def _checked_start(written: str) -> str:
    try:
        start_time(written)
    except ValueError:
        raise problem(
            codes.VALUE_MALFORMED,
            f"{written!r} is not a valid start",
            "earliest, latest, or a time with an offset: 2024-01-01T00:00:00Z",
        ) from None
    return written


Start = Annotated[str, After(_checked_start)]
"""`earliest`, `latest`, or a time with an offset."""
