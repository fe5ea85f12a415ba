"""Errors, by who must act and what helps.

A message says what happened, where (pipeline, vertex, lane, position) and what to do. People look up the code
(`millstream.codes`). Programs decide by the class. A process exits with the exit code of the error that ended it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from millstream import codes
from millstream.codes.code import Code

REPAIR = "Restore it, see the advice of `millstream repair`, or start the pipeline over"
"""The advice in messages about damage."""


class MillstreamError(Exception):
    """Base of all our errors. An error of this class itself is a defect of Millstream."""

    exit_code: ClassVar[int] = 70
    """Exit code of a process that ends with this error."""

    def __init__(self, code: Code, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.code = code
        """What happened: its entry in the catalogue of errors."""
        self.detail = detail
        """Everything else, for the log: the traceback of a function."""
        # If only a traceback arrives, as from one of Spark's Python workers, it still has the code.
        self.add_note(code.id)

    @property
    def shown(self) -> str:
        """What the command line prints."""
        return f"error[{self.code}]: {self}"


class UserError(MillstreamError):
    """The user has to change something: the spec, a command, a function."""

    exit_code: ClassVar[int] = 2


class UdfError(UserError):
    """A user-defined function failed and its policy says stop, or it cannot be run or breaks its protocol."""

    exit_code: ClassVar[int] = 3


class InfrastructureError(MillstreamError):
    """The machine or a server has to be fixed: a port that is in use, a full disk, a server that cannot be reached."""

    exit_code: ClassVar[int] = 4


class DurabilityError(InfrastructureError):
    """The broker would not keep the data that it acknowledges; see `Durability`."""


class DamageError(InfrastructureError):
    """Stored data is damaged. The message names what the damage affects; nothing was skipped."""

    exit_code: ClassVar[int] = 5


class FencedError(MillstreamError):
    """Another owner has taken over the lane. No part of this owner's last commit had an effect."""

    exit_code: ClassVar[int] = 6


class RetryLaterError(MillstreamError):
    """The attempt had no effect and may succeed later (a server is away, a disk is full). Callers wait and retry."""

    exit_code: ClassVar[int] = 4


class BufferFullError(RetryLaterError):
    """The server refused a commit because a buffer is full; no part of the commit was stored."""


class StorageFullError(RetryLaterError):
    """The server refused a commit because its storage is full; no part of the commit was stored."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, at any depth; an error that is not a group is the only one."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def first_cause(error: BaseException) -> MillstreamError | None:
    """What to report of an error, or of several tasks that failed together: the first of our errors; None if there is
    none."""
    return next((one for one in leaves(error) if isinstance(one, MillstreamError)), None)


def kind_of(error: MillstreamError) -> str:
    """What another process needs to rebuild the error, besides its text: `DamageError MS-5102`.

    If the class is not in this module, its nearest base class in this module is named.
    """
    known = next(kind for kind in type(error).__mro__ if globals().get(kind.__name__) is kind)
    return f"{known.__name__} {error.code}"


def error_of(kind: str, message: str) -> MillstreamError | None:
    """Inverse of `kind_of`; None if the error is not one of ours, or comes from another version."""
    name, _, written = kind.partition(" ")
    found, code = globals().get(name), codes.find(written)
    if code is None or not isinstance(found, type) or not issubclass(found, MillstreamError):
        return None
    return found(code, message)
