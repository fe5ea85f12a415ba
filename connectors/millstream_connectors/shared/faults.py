"""What in a target or a source does not fit the settings.

Above it: lanes, which stop because of it, and `validate --online`, which reports it. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream import codes
from millstream.errors import UserError


class Fault(NamedTuple):
    """One problem."""

    loc: tuple[str | int, ...]
    """Place in the settings."""
    what: str
    expected: str


def check_fit(where: str, faults: Iterable[Fault]) -> None:
    """Raises `UserError` if there are faults."""
    text = "; ".join(f"{fault.what} (expected: {fault.expected})" for fault in faults)
    if text:
        raise UserError(codes.TARGET_UNFIT, f"{where}: {text}")
