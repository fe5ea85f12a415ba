"""What a failure means to a lane if the client of a server says nothing more exact: who must act.

Above it: the clients of connectors. Below it: the errors of Millstream.
"""

from __future__ import annotations

import ssl

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError


def failure_of(error: BaseException, place: str) -> MillstreamError:
    """The Millstream error: that of the user for a connection that cannot be encrypted, and otherwise
    `RetryLaterError`. `place`: the lane and the server, for the message."""
    said = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLError) or "CERTIFICATE_VERIFY_FAILED" in said or "WRONG_VERSION_NUMBER" in said:
        return UserError(codes.TARGET_REFUSES, f"{place}: no encrypted connection: {said}")
    if isinstance(error, TimeoutError):
        return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}")
