"""The files of a Delta table: of its log, and with its rows.

deltalake offers them as well, but lists and opens them, and reads its history, while it holds the interpreter's lock.
Nothing else in the process runs until the store answers, and nothing ever again if deltalake's own threads need the
lock meanwhile.

Above it: the opening of tables, and the source's log. Below it: pyarrow for a directory, obstore for an object store.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError

from millstream.limits import TABLE_METADATA_BYTES_MAX
from millstream_connectors.shared.objects.settings import ObjectStore, is_url, parse_url
from millstream_connectors.shared.objects.stores import Store, listed, make_store

LOG = "_delta_log"


class TableFiles(ABC):
    """The files of one table, named by their paths within it. Blocking. Errors are `OSError`."""

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The files of the log, with the bytes of each."""

    @abstractmethod
    def open(self, path: str) -> IO[bytes]:
        """A file for Arrow, with a method `size`. Raises `FileNotFoundError`."""

    def has_commit(self, version: int) -> bool:
        """Whether the log has an entry of a version."""
        try:
            self.open(_commit_file(version)).close()
        except FileNotFoundError:
            return False
        return True

    def commit(self, version: int) -> bytes | None:
        """The entry of a version in the log; None if there is none, as of old ones. Raises `ValueError` for one that is
        too long."""
        try:
            with self.open(_commit_file(version)) as stream:
                data = bytes(stream.read(TABLE_METADATA_BYTES_MAX + 1))
        except FileNotFoundError:
            return None
        if len(data) > TABLE_METADATA_BYTES_MAX:
            raise ValueError(f"it has more than {TABLE_METADATA_BYTES_MAX} bytes, the limit")
        return data


def _commit_file(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def table_files(path: str, settings: ObjectStore, base_dir: Path, where: str) -> TableFiles:
    """The files of a table. Sends no request. Raises `UserError` for missing credentials."""
    return _Bucket(path, settings, base_dir, where) if is_url(path) else _Directory(base_dir / path)


class _Directory(TableFiles):
    def __init__(self, root: Path) -> None:
        self._root = root

    def sizes(self) -> Mapping[str, int]:
        found = {}
        for path in (self._root / LOG).rglob("*"):
            # Another program may have removed it since it was listed, as unfinished ones are.
            with suppress(FileNotFoundError):
                if path.is_file():
                    found[path.relative_to(self._root).as_posix()] = path.stat().st_size
        return found

    def open(self, path: str) -> IO[bytes]:
        return cast("IO[bytes]", pa.OSFile(str(self._root / path), "rb"))


class _Bucket(TableFiles):
    def __init__(self, url: str, settings: ObjectStore, base_dir: Path, where: str) -> None:
        place = parse_url(url)
        self._store = make_store(place, settings, base_dir, where)
        self._key = place.key.strip("/")

    def sizes(self) -> Mapping[str, int]:
        root = self._of("")
        with _os_errors():
            return {meta["path"].removeprefix(root): meta["size"] for meta in listed(self._store, self._of(LOG))}

    def open(self, path: str) -> IO[bytes]:
        with _os_errors():
            return cast("IO[bytes]", _Object(self._store, self._of(path)))

    def _of(self, path: str) -> str:
        return f"{self._key}/{path}" if self._key else path


class _Object(io.RawIOBase):
    """One object. Each read is a request."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key, self._place = store, key, 0
        self._size = obstore.head(store, key)["size"]

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._place + size)
        if self._place >= end:
            return b""
        with _os_errors():
            data = bytes(obstore.get_range(self._store, self._key, start=self._place, end=end))
        self._place += len(data)
        return data


@contextmanager
def _os_errors() -> Iterator[None]:
    """Errors of the client as those of a file, with the client's words."""
    try:
        yield
    except BaseError as error:
        raise OSError(str(error)) from error
