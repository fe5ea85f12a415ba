"""Reads the files of a table, which an open table format keeps in states: versions, or snapshots.

Above it: the lane, in its worker thread. Below it: the client of a format, and Parquet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from millstream import codes
from millstream.errors import DamageError, MillstreamError, UserError
from millstream.limits import TABLE_FILES_MAX
from millstream_connectors.file.source.table_file import UNREADABLE, unreadable_file


class TableFile(Protocol):
    """A file with rows."""

    @property
    def path(self) -> str:
        """The path that the table has for it."""

    @property
    def rows(self) -> int | None:
        """None if the table does not say."""


F = TypeVar("F", bound=TableFile)


class StateFiles(NamedTuple, Generic[F]):
    """The files of a state to read."""

    files: Sequence[F]
    skipped: str = ""
    """Why none is read: the operation that changed rows."""
    crc: int = 0
    """Checksum of what the state was read from, which differs if another one takes its place."""


class TableReader(ABC, Generic[F]):
    """One table. Blocking; used by one thread. Its methods raise Millstream errors."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of the client."""
    noun: ClassVar[str]
    """What a state is called."""
    removal: ClassVar[str]
    """What takes files away that are still to be read."""

    def __init__(self, where: str, named: str, *, skip_changes: bool) -> None:
        """`where` and `named`: the lane and the table, for messages."""
        self._where = where
        self.named = named
        self._skip_changes = skip_changes

    @abstractmethod
    def open(self) -> str:
        """Reach the table; returns its id."""

    def close(self) -> None:
        """Close connections."""

    def rows(self, file: F, skipped: int) -> Iterator[list[bytes]]:
        """The rows of a file after the first `skip`, as JSON objects, in blocks."""
        try:
            with self._stream(file) as stream:
                try:
                    yield from self._rows_in(stream, file, skipped)
                except UNREADABLE as error:
                    raise unreadable_file(self._where, f"{file.path} of {self.named}", error) from error
        except FileNotFoundError as error:
            raise DamageError(
                codes.SOURCE_FILE_CHANGED,
                f"{self._where}: {file.path} of {self.named} is missing: {self.removal} before it was read. Restore "
                "it, or start over with --fresh",
            ) from error
        except self.failures as error:
            raise self._error(error) from error

    @abstractmethod
    def _stream(self, file: F) -> AbstractContextManager[Any]:
        """A file, open."""

    @abstractmethod
    def _rows_in(self, stream: Any, file: F, skipped: int) -> Iterator[list[bytes]]:
        """The rows of an open file, as `rows`."""

    @abstractmethod
    def _error(self, error: BaseException) -> MillstreamError:
        """The Millstream error for one of `failures`."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise self._error(error) from error

    def _changing(self, state: int, operation: str) -> StateFiles[F]:
        """A state that changes or removes rows. Raises `UserError` if `skipChanges` is not set."""
        if self._skip_changes:
            return StateFiles((), operation)
        raise self._unfit(
            f"{self.noun} {state} of {self.named} changes or removes rows ({operation}), but the source reads only "
            f"added rows. Rows of earlier {self.noun}s are kept. Set `skipChanges: true` to skip such {self.noun}s, or "
            "start over with --fresh to begin with the current rows of the table"
        )

    def _check_number(self, files: int) -> None:
        if files > TABLE_FILES_MAX:
            raise self._unfit(f"{self.named} has more than {TABLE_FILES_MAX} data files, the limit. Compact it")

    def _unfit(self, what: str) -> UserError:
        return UserError(codes.TARGET_UNFIT, f"{self._where}: {what}")
