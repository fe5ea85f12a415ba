"""Reports why a replica, or the worker itself, cannot continue: one line in its log, and an exit code.

Above it: the process and the worker. Below it: the log.
"""

from __future__ import annotations

import logging

from millstream import codes
from millstream.errors import (
    DamageError,
    FencedError,
    InfrastructureError,
    MillstreamError,
    UdfError,
    UserError,
    leaves,
)
from millstream.missing_packages import missing_package
from millstream.telemetry.logging import NOTICE

_log = logging.getLogger(__name__)
_NO_MEMORY = (
    "the system gives this process no more memory. Something that it reads takes more when it is decompressed or "
    "loaded, or the machine, its container or `ulimit` leaves too little. Nothing was committed of it"
)


def is_of_function(error: BaseException) -> bool:
    """Whether a function of the user's, and nothing else, ended a replica."""
    return isinstance(min(leaves(error), key=_telling), UdfError)


def report(error: BaseException, *, note: str = "") -> int:
    """Log the most informative error that ended a replica or the process, and return the exit code.

    When one task fails, the others are cancelled, and some of them fail in turn; one report is enough. `note`: what
    happens next, if the process does not end with it.
    """
    first = min(leaves(error), key=_telling)
    if isinstance(first, MillstreamError):
        # With a role, the line is not the reason why the process ends, if it ends later.
        extra = ({"exception": first.detail} if first.detail else {}) | ({"role": "udf", NOTICE: True} if note else {})
        _log.error("%s%s", first, f"\n{note}" if note else "", extra=extra)
        return first.exit_code
    if isinstance(first, MemoryError):
        _log.error("%s", _NO_MEMORY, exc_info=first, extra={"code": codes.PROCESS_TOO_LARGE.id})
        return InfrastructureError.exit_code
    if isinstance(first, ModuleNotFoundError) and (missing := missing_package(first, "this vertex")) is not None:
        _log.error("%s", missing, extra={"code": missing.code.id})
        return missing.exit_code
    _log.error("defect: %r", first, exc_info=first, extra={"code": codes.DEFECT.id})
    return MillstreamError.exit_code


def _telling(error: BaseException) -> int:
    """Rank an error by who must act: us before the user, the user before the machine. Fencing is first."""
    if isinstance(error, FencedError):
        return 0
    if not isinstance(error, MillstreamError):
        return 1
    if isinstance(error, DamageError):
        return 2
    return 3 if isinstance(error, UserError) else 4
