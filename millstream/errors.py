"""Errors, by who must act and what helps.

A message says what happened, where (pipeline, vertex, lane, position) and what to do; the code (`millstream.codes`) is
what one looks up. The class is what programs decide by. The exit code of a process is that of the error that ended it.
"""

from __future__ import annotations

from typing import ClassVar

from millstream import codes
from millstream.codes.code import Code


class MillstreamError(Exception):
    """Base of all errors of ours. Unspecific: a defect of Millstream itself."""

    exit_code: ClassVar[int] = 70
    """Exit code of a process that ends with this error."""

    def __init__(self, code: Code, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.code = code
        """What happened, as one can look it up."""
        self.detail = detail
        """All there is to say, for the log: the traceback of a function."""
        # Where only a traceback arrives, as from a Python worker of Spark's, it has the code anyway.
        self.add_note(code.id)

    @property
    def shown(self) -> str:
        """What the command line prints of it."""
        return f"error[{self.code}]: {self}"


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


def kind_of(error: MillstreamError) -> str:
    """What another process needs to make the error again, beside its text: `DamageError MS-5102`.

    Of a class that is not in this module it names the nearest one above it that is.
    """
    known = next(kind for kind in type(error).__mro__ if globals().get(kind.__name__) is kind)
    return f"{known.__name__} {error.code}"


def error_of(kind: str, message: str) -> MillstreamError | None:
    """Inverse of `kind_of`; None where it is none of ours, or of another version's."""
    name, _, written = kind.partition(" ")
    found, code = globals().get(name), codes.find(written)
    if code is None or not isinstance(found, type) or not issubclass(found, MillstreamError):
        return None
    return found(code, message)
