"""One report for one failure: what to report when several tasks failed together. Pure."""

from __future__ import annotations

from millstream.errors import MillstreamError


def first_cause(group: BaseExceptionGroup[BaseException]) -> MillstreamError | None:
    """The first of our errors in a group, at any depth; None if there is none."""
    for error in group.exceptions:
        if isinstance(error, MillstreamError):
            return error
        if isinstance(error, BaseExceptionGroup) and (found := first_cause(error)) is not None:
            return found
    return None
