"""Errors, by who must act and what helps.

A message says what happened, where (pipeline, vertex, lane, position) and what to do. The exit code of a
process is that of the error that ended it.
"""

from __future__ import annotations

from typing import ClassVar


class MillstreamError(Exception):
    """Base of all errors of ours. Unspecific: a defect of Millstream itself."""

    exit_code: ClassVar[int] = 70
    """Exit code of a process that ends with this error."""


class UserError(MillstreamError):
    """The user has to change something: the spec, a command, a function."""

    exit_code: ClassVar[int] = 2


class UdfError(UserError):
    """A user-defined function failed and its policy says stop, or it cannot be run or breaks its protocol."""

    exit_code: ClassVar[int] = 3


class InfrastructureError(MillstreamError):
    """The machine or a server has to be changed: a port taken, a full disk, a server that cannot be reached."""

    exit_code: ClassVar[int] = 4


class DurabilityError(InfrastructureError):
    """The broker would not keep what it acknowledges; see `Durability`."""


class DamageError(InfrastructureError):
    """Stored data is damaged. The message names what it affects; nothing was skipped."""

    exit_code: ClassVar[int] = 5


class FencedError(MillstreamError):
    """Another owner has taken the lane over. Nothing of this owner's last commit had an effect."""

    exit_code: ClassVar[int] = 6


class RetryLaterError(MillstreamError):
    """What was tried had no effect and may succeed later (a server away, a disk full). Callers wait and try again."""

    exit_code: ClassVar[int] = 4


class BufferFullError(RetryLaterError):
    """The server refused a commit because a buffer is full; nothing of it was stored."""


class StorageFullError(RetryLaterError):
    """The server refused a commit because its storage is full; nothing of it was stored."""
