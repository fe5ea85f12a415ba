"""Where a file sink's lane puts its files: a directory, or a prefix in an object store."""

from __future__ import annotations

from typing import Any, Protocol

from millstream.record import Position


class FileTarget(Protocol):
    """One lane's place for files, under one epoch. Blocking. Files are finished by one thread; another one may call
    `begin` and `append` for the next file meanwhile, where the lane has a finisher."""

    def begin(self, extension: str) -> Any:
        """A new unfinished file. Raises `RetryLaterError` if there is no space."""

    def append(self, file: Any, data: bytes, partition: str) -> int:
        """Write some or all of `data` into that partition of the file; returns the number of bytes. Raises
        `RetryLaterError` if nothing could be written."""

    def finish(self, file: Any, after: Position, end: Position, extension: str, frame: str) -> None:
        """Make the file visible, complete and durable. After `RetryLaterError` it may be called again.

        `frame` is the name of the frame with its last record.
        """

    def discard(self, file: Any) -> None:
        """Remove an unfinished file, as far as that is possible."""

    def close(self) -> None:
        """The lane is not used any more."""
