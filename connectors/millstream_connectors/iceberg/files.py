"""Files of Iceberg tables, which are durable on a local disk when they are closed, before anything refers to them.

`catalogs` makes it for every table: no property of a table or of an answer names another class. Object stores go
through Arrow, as in pyiceberg itself.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from millstream.files import sync_path
from millstream_connectors.iceberg.answers import for_files
from millstream_connectors.iceberg.bounds import check_metadata
from millstream_connectors.shared.failing import on_failure

_SCHEMES = ("file", "s3", "s3a", "s3n", "gs", "gcs")
"""Of the places that a table's metadata may name. Arrow would start a JVM for Hadoop's file systems."""


_DATA = (".parquet", ".orc")
"""Files that are read in parts. Others are read as a whole."""


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's class, with an fsync of local files."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__(for_files(properties))

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        if scheme not in _SCHEMES:
            raise ValueError(f"{scheme}:// is not a place for the files of a table (expected: s3://, gs:// or file://)")
        return super()._initialize_fs(scheme, netloc)

    def new_input(self, location: str) -> PyArrowFile:
        file = super().new_input(location)
        if location.endswith(_DATA):
            return file
        return _Metadata(fs=file._filesystem, location=location, path=file._path, buffer_size=file._buffer_size)

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        return _LocalFile(location, path, file._filesystem) if scheme == "file" else file


class _Metadata(PyArrowFile):
    def open(self, seekable: bool = True) -> Any:  # pyiceberg's signature
        """A stream that is not longer than the limit. Raises `ValueError`."""
        stream = super().open(seekable=True)
        try:
            check_metadata(stream.size(), self._path)  # type: ignore[attr-defined]  # it is Arrow's
        except ValueError:
            stream.close()
            raise
        return stream


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        """A stream whose `close` returns when the file is on the disk."""
        return _Synced(Path(self._path), overwrite=overwrite)


class _Synced(io.BufferedWriter):
    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        self._directories = {path.parent}
        for parent in path.parents:
            if parent.exists():
                break
            # Its own entry in its parent has to be on the disk, too.
            self._directories.add(parent.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(io.FileIO(path, "w" if overwrite else "x"))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self._discard()
        else:
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        with on_failure(self._discard):
            self.flush()
            os.fsync(self.fileno())
        super().close()
        for directory in sorted(self._directories, key=lambda directory: -len(directory.parts)):
            sync_path(directory)

    def _discard(self) -> None:
        """Close an incomplete file, and remove it: nothing refers to it, and a full disk needs its space."""
        with suppress(OSError):
            # This tries to write the rest once more.
            super().close()
        with suppress(OSError):
            self._path.unlink()
