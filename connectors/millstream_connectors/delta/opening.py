"""Opens and updates a Delta table, after a look at what deltalake would load of its log.

    _delta_log: newest complete checkpoint (Parquet, its parts and sidecars) ─► commits after it (JSON) ─► the table
                a page stands for any number of bytes                           parsed as a whole

deltalake has all of it in memory before anything of it can be looked at, and a checkpoint of kilobytes may stand for
gigabytes. So the sizes of all these files are added up first, of checkpoints those of their decoded pages. What others
write between the look and the loading is looked at the next time.

Above it: the source and the sink. Below it: deltalake, the table's files, and pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from millstream import codes
from millstream.errors import UserError
from millstream.json_parser import parse_json
from millstream.limits import MIB, TABLE_LOG_BYTES_MAX
from millstream_connectors.delta.client import address_of, options_of
from millstream_connectors.delta.files import LOG, table_files
from millstream_connectors.file.source.parquet_pages import decoded_bytes
from millstream_connectors.file.source.table_file import UNREADABLE, copy_of
from millstream_connectors.shared.objects.settings import ObjectStore, is_url

_SIDECARS = f"{LOG}/_sidecars"
_LAST = "_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json")
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
_SUM = re.compile(r"(\d{20})\.crc")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")
_PART = re.compile(r"\d{20}\.checkpoint\.\d{10}\.(\d{10})\.parquet")
_WHOLE = re.compile(r"\d{20}\.checkpoint\.(?:parquet|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.(?:parquet|json))")


class _Loaded(NamedTuple):
    """A file of the log, and the bytes that it takes."""

    path: str
    size: int


class TableOpening:
    """One table. Blocking; used by one thread."""

    def __init__(self, path: str, store: ObjectStore | None, base_dir: Path, where: str) -> None:
        """Raises `UserError` for missing credentials."""
        store = store or ObjectStore()
        self.address = address_of(path, base_dir)
        self.options = options_of(path, store, base_dir, where)
        self.files = table_files(path, store, base_dir, where)
        self._place = f"{where}: the Delta table {path}"
        self._decoded: dict[_Loaded, tuple[int, tuple[str, ...]]] = {}
        """By checkpoint, as it is stored: the bytes of its pages, and its sidecars."""

    def open(self, version: int | None = None) -> DeltaTable:
        """The table. Raises `UserError` if its log takes more memory than the limit, and exceptions of the client."""
        self._check(version)
        return DeltaTable(self.address, version=version, storage_options=self.options)

    def update(self, table: DeltaTable) -> None:
        """Load the newer versions. Errors: as of `open`."""
        self._check(None)
        table.update_incremental()

    def check_newer(self, table: DeltaTable) -> None:
        """Called before a commit, which loads the versions that others have committed since. Errors: as of `open`."""
        if self.files.has_commit(table.version() + 1):
            self._check(None)

    def _check(self, version: int | None) -> None:
        self._add_up(self._loaded(self.files.sizes(), version))

    def _add_up(self, files: Iterable[_Loaded]) -> None:
        total = 0
        largest = _Loaded("", 0)
        for file in files:
            total += file.size
            largest = max(largest, file, key=lambda one: one.size)
            if total > TABLE_LOG_BYTES_MAX:
                raise UserError(
                    codes.TARGET_UNFIT,
                    f"{self._place}: its log takes more than {TABLE_LOG_BYTES_MAX // MIB} MiB when it is loaded, the "
                    f"limit; {largest.path} alone takes {largest.size // MIB} MiB. Compact the table, or have its "
                    "writer create a checkpoint, so that its log has fewer and smaller files",
                )

    def _loaded(self, sizes: Mapping[str, int], version: int | None) -> Iterator[_Loaded]:
        """The files that deltalake loads for a version, None for the newest one."""
        names = {path.removeprefix(f"{LOG}/"): path for path in sizes if not path.startswith(_SIDECARS)}
        checkpoints: dict[int, list[str]] = {}
        for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
            if version is None or int(match[1]) <= version:
                checkpoints.setdefault(int(match[1]), []).append(match[0])
        base = -1
        for base in sorted(checkpoints, reverse=True):
            # Also those that deltalake may not know: only what certainly is one ends the search.
            for name in checkpoints[base]:
                yield from self._checkpoint(names[name], sizes)
            if _is_complete(checkpoints[base]):
                break
        else:
            base = -1
        if _LAST in names:
            yield _Loaded(names[_LAST], sizes[names[_LAST]])
        for name, path in names.items():
            for match in filter(None, (form.fullmatch(name) for form in (_COMMIT, _COMPACTED, _SUM))):
                if int(match[1]) >= base and (version is None or int(match[1]) <= version):
                    yield _Loaded(path, sizes[path])

    def _checkpoint(self, path: str, sizes: Mapping[str, int]) -> Iterator[_Loaded]:
        """A checkpoint, and the files that it names."""
        size, sidecars = self._looked_at(_Loaded(path, sizes[path]))
        yield _Loaded(path, size)
        for name in sidecars:
            sidecar = f"{_SIDECARS}/{name.rpartition('/')[2]}"
            if sidecar in sizes:
                size, _ = self._looked_at(_Loaded(sidecar, sizes[sidecar]))
                yield _Loaded(sidecar, size)

    def _looked_at(self, file: _Loaded) -> tuple[int, tuple[str, ...]]:
        if file.size > TABLE_LOG_BYTES_MAX:
            return file.size, ()
        if file not in self._decoded:
            try:
                with self.files.open(file.path) as stream:
                    look = _in_json if file.path.endswith(".json") else _in_parquet
                    self._decoded[file] = look(stream, is_remote=is_url(self.address))
            except UNREADABLE as error:
                what = str(error).partition("\n")[0]
                raise UserError(codes.TARGET_UNFIT, f"{self._place}: {file.path} cannot be loaded: {what}") from error
        return self._decoded[file]


def _is_complete(names: list[str]) -> bool:
    """Whether one of the checkpoints of a version has all its parts."""
    if any(map(_WHOLE.fullmatch, names)):
        return True
    counts = [int(match[1]) for match in filter(None, map(_PART.fullmatch, names))]
    return any(0 < count <= counts.count(count) for count in counts)


def _in_json(stream: Any, *, is_remote: bool) -> tuple[int, tuple[str, ...]]:
    contents = bytes(stream.read())
    named = (parse_json(line).get("sidecar") for line in contents.splitlines() if b'"sidecar"' in line)
    return len(contents), tuple(str(one["path"]) for one in named if one)


def _in_parquet(stream: Any, *, is_remote: bool) -> tuple[int, tuple[str, ...]]:
    with ExitStack() as files:
        source = files.enter_context(copy_of(stream)) if is_remote else stream
        size = decoded_bytes(source, TABLE_LOG_BYTES_MAX)
        if size > TABLE_LOG_BYTES_MAX:
            return size, ()
        # It takes time, and is done in a thread.
        import pyarrow.parquet as pq

        source.seek(0)
        file = pq.ParquetFile(source)
        if "sidecar" not in file.schema_arrow.names:
            return size, ()
        named = (row["sidecar"] for batch in file.iter_batches(columns=["sidecar"]) for row in batch.to_pylist())
        return size, tuple(str(one["path"]) for one in named if one)
