"""The data directory of a local pipeline: what a run leaves behind and the next one continues from.

Above it: the runner, and the commands that inspect a run from outside. Below it: files. It does not know processes
beyond their ids.

    <root>/lock            held (flock) by the one runner; its text is that runner's process id
    <root>/pipeline.json   the resolved pipeline, as the vertex processes read it
    <root>/shape.json      names, kinds and partitions that the stored data depends on
    <root>/ledgers.json    the ledgers in the broker's store, by vertex
    <root>/runtime.json    ports and processes of the current run, or of the last one
    <root>/status.json     the figures last shown; rewritten when they change, and every second
    <root>/audit.jsonl     who did what, and when; not removed by a fresh start
    <root>/broker/         the broker: configuration, key of the run, store with every buffer, mark and watermark
    <root>/restoring.json  the savepoint that a run is about to begin with; nothing has run as long as it is there
    <root>/savepoints/     savepoints, <name>/; not removed by a fresh start
    <root>/windows/        the logs of the reduce lanes, <vertex>/<partition>: records of open windows
    <root>/states/         what functions remember on disk, <vertex>/<partition>; made anew if it is removed
    <root>/spark/          the Spark driver's settings, and its temporary files
    <root>/logs/           one file of JSON lines per process, bounded by rotation

Small files are replaced atomically (temporary name, fsync, rename), so a reader never sees half of one. Only the owner
can read the directory and its contents, because settings and records may contain secrets.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from millstream import codes
from millstream.buffers.technology import Access, Technology
from millstream.durable import step
from millstream.errors import DamageError, InfrastructureError, UserError
from millstream.files import (
    PRIVATE_DIRECTORY,
    create_private,
    directories_to_sync,
    open_private,
    opened_directory,
    own_directory,
)
from millstream.json_parser import parse_json
from millstream.nearest import did_you_mean
from millstream.sandbox import DATA_DIRECTORIES

HOME = Path(DATA_DIRECTORIES)
"""Directory for data directories, below the current directory, unless the user names another place."""

_CONTENTS = (
    "broker",
    "windows",
    "states",
    "spark",
    "logs",
    "status.json",
    "runtime.json",
    "pipeline.json",
    "ledgers.json",
    "replayed",
    "shape.json",
    "restoring.json",
)
"""In the order of removal: the files that say whose data the rest is, and whether it is whole, are removed last."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies a process, and distinguishes it from a later one with the same id."""

    pid: int
    created: float
    """When it was started, in seconds since the epoch, according to the operating system."""


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """One process of a run."""

    name: str
    """"broker", "spark", "worker.<number>", or "<vertex>-<replica>" for a worker that runs only that replica."""
    identity: ProcessIdentity
    metrics_port: int | None = None
    replicas: tuple[str, ...] = ()
    """The replicas that a worker runs."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What other processes need to find a run: `runtime.json`."""

    pipeline: str
    runner: ProcessIdentity
    broker_port: int
    """0 if the broker has none."""
    broker_url: str
    processes: tuple[RunningProcess, ...] = field(default_factory=tuple)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            pipeline=data["pipeline"],
            runner=ProcessIdentity(**data["runner"]),
            broker_port=data["broker_port"],
            broker_url=data["broker_url"],
            processes=tuple(
                RunningProcess(
                    item["name"],
                    ProcessIdentity(**item["identity"]),
                    item["metrics_port"],
                    tuple(item.get("replicas", ())),
                )
                for item in data["processes"]
            ),
        )


class DataDirectory:
    """Paths and small files below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "lock"
        self.pipeline = root / "pipeline.json"
        self.shape = root / "shape.json"
        self.ledgers = root / "ledgers.json"
        self.runtime = root / "runtime.json"
        self.status = root / "status.json"
        self.audit = root / "audit.jsonl"
        self.replayed = root / "replayed"
        """The dead letters that were replayed, one identity on each line, for `deadletters list`. What was replayed
        before is known to the ledgers."""
        self.broker = root / "broker"
        self.broker_access = self.broker / "access.json"
        """The credentials of the run's processes for its broker; the key is next to it."""
        self.restoring = root / "restoring.json"
        self.savepoints = root / "savepoints"
        self.windows = root / "windows"
        self.states = root / "states"
        self.spark = root / "spark"
        self.logs = root / "logs"

    def read_runtime(self) -> Runtime | None:
        """The current run, or the last one; None if there was none."""
        data = read_json(self.runtime)
        if data is None:
            return None
        try:
            return Runtime.from_json(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise DamageError(
                codes.RUN_FILE_UNREADABLE, f"{self.runtime} is not a runtime file ({error!r}); remove it"
            ) from error

    def access(self, runtime: Runtime, used: Technology) -> Access:
        """How to connect to the broker of that run, which uses this technology."""
        return used.load_access(self.broker_access, runtime.broker_url)

    def read_pipeline(self) -> str:
        """The pipeline of the last run, resolved. Raises `DamageError` if it is not text."""
        try:
            return self.pipeline.read_text(encoding="utf-8")
        except OSError as error:
            raise InfrastructureError(codes.CANNOT_READ, f"cannot read {self.pipeline}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DamageError(
                codes.RUN_FILE_UNREADABLE, f"{self.pipeline} is not text ({error}); the next run writes it again"
            ) from error

    def make(self) -> None:
        """Create the directories of a run, even if the root is a directory that other users may read."""
        for path in (self.broker, self.windows, self.logs):
            with explained(f"cannot use {path}"):
                make_private(path)
                own_directory(path)

    def clear(self, *, keep: Collection[Path] = ()) -> None:
        """Remove everything that a run keeps, and nothing else in the directory. `keep`: files that stay."""
        for path in (self.root / name for name in _CONTENTS):
            if path in keep:
                continue
            with explained(f"cannot remove {path}"), step("data.clear"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


class KnownLedgers:
    """The ledgers of one data directory: recorded when they are created, and looked for before a run begins.

    A server that cannot read the description of a stream omits the stream, and a vertex creates a missing ledger. It
    would start over as if nothing had been stored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = read_json(path) or {}

    def check(self, found: Mapping[str, str]) -> None:
        """Raise `DamageError` if a ledger is missing, or was recreated. `found`: the existing ledgers, id by vertex."""
        lost = [
            f"that of vertex {vertex} " + ("is gone" if vertex not in found else "was rebuilt")
            for vertex, ledger_id in sorted(self._known.items())
            if found.get(vertex) != ledger_id
        ]
        if lost:
            raise DamageError(
                codes.LEDGER_GONE,
                f"ledgers listed in {self._path} are missing from the broker's store: {'; '.join(lost)}. Their "
                "contents are not available; the broker's log says whether files of the store are damaged. Restore "
                "the store, or start the pipeline over with --fresh",
            )

    def forget(self, vertices: Collection[str]) -> None:
        """Record that these are about to be removed. Durable on return."""
        self.replace({vertex: ledger_id for vertex, ledger_id in self._known.items() if vertex not in vertices})

    def note(self, found: Mapping[str, str]) -> None:
        """Record that these exist. Durable on return."""
        self.replace({**self._known, **found})

    def replace(self, found: Mapping[str, str]) -> None:
        """Record that these are all there are, and drop what was recorded about others. Durable on return."""
        if found != self._known:
            self._known = dict(found)
            write_json(self._path, self._known)


@contextmanager
def held(root: Path) -> Iterator[DataDirectory]:
    """The directory, created if missing and locked for one runner.

    The lock ends with the process that holds it, however it ends; children do not inherit it.
    """
    directory = DataDirectory(root)
    with explained(f"cannot use the data directory {root}"):
        make_private(root)
        handle = open_private(directory.lock)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise InfrastructureError(
                    codes.CANNOT_WRITE, f"cannot lock {directory.lock}: {error.strerror}"
                ) from error
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            raise InfrastructureError(
                codes.DATA_DIRECTORY_IN_USE,
                f"the data directory {root} is in use by process {holder}; end that run first (Ctrl-C in its terminal, "
                f"or `kill {holder}`), or choose another directory with --data-dir",
            ) from error
        with explained(f"cannot write into the data directory {root}"), step("data.hold"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield directory
    finally:
        os.close(handle)


def root_of(pipeline: str, data_dir: Path | None) -> Path:
    """Where a pipeline's data is: in the directory that the user has named, or else in its own below `HOME`."""
    return data_dir or HOME / pipeline


def find_directory(data_dir: Path | None, pipeline: str | None) -> DataDirectory:
    """The directory that a command refers to: the named one, that of a pipeline, or the only one there is."""
    if data_dir is not None:
        if not (data_dir / "runtime.json").exists():
            raise UserError(
                codes.NO_SUCH_RUN, f"{data_dir} is not the data directory of a pipeline (it has no runtime.json)"
            )
        return DataDirectory(data_dir)
    known = sorted(path.parent for path in HOME.glob("*/runtime.json"))
    names = ", ".join(path.name for path in known)
    if pipeline is not None:
        root = root_of(pipeline, None)
        if root not in known:
            there = f"there are: {names}" if names else "there is none"
            there += did_you_mean(pipeline, (path.name for path in known))
            raise UserError(
                codes.NO_SUCH_RUN,
                f"no run of pipeline {pipeline!r} in {HOME.absolute()} ({there}); change to the directory it was "
                "started from, or use --data-dir",
            )
        return DataDirectory(root)
    if len(known) == 1:
        return DataDirectory(known[0])
    if not known:
        raise UserError(
            codes.NO_SUCH_RUN,
            f"no pipeline has run here: {HOME.absolute()} contains none; change to the directory it was started "
            "from, or use --data-dir",
        )
    raise UserError(
        codes.NO_SUCH_RUN,
        f"several pipelines have run here ({names}): give the file of a pipeline, --pipeline NAME or --data-dir DIR",
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if the file does not exist."""
    try:
        data = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InfrastructureError(codes.CANNOT_READ, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DamageError(codes.RUN_FILE_UNREADABLE, f"{path} is not JSON ({error}); remove it") from error
    if not isinstance(data, dict):
        raise DamageError(
            codes.RUN_FILE_UNREADABLE, f"{path} contains {type(data).__name__}, expected an object; remove it"
        )
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a file atomically and durably."""
    write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Like `write_json`, for any text. From the start, only its owner can read the file.

    Without `durable` it is not fsynced, for files that are rewritten every second.
    """
    temporary = path.with_name(path.name + ".tmp")
    with explained(f"cannot write {path}"):
        try:
            with step("data.write"):
                # A file left by a killed process may have the permissions of an earlier version.
                temporary.unlink(missing_ok=True)
                with open(create_private(temporary), "w", encoding="utf-8") as file:
                    file.write(text)
                    if durable:
                        file.flush()
                        os.fsync(file.fileno())
            with step("data.name"):
                temporary.replace(path)
            if durable:
                with step("data.name.sync"):
                    _sync_directory(path.parent)
        except OSError:
            with step("data.abandon"):
                temporary.unlink(missing_ok=True)
            raise


def make_private(path: Path) -> None:
    """Durably create a directory that only its owner can read; an existing one keeps its permissions."""
    for directory in directories_to_sync(path):
        with step("data.directory"):
            directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        with step("data.directory.sync"):
            _sync_directory(directory.parent)


def _sync_directory(path: Path) -> None:
    with opened_directory(path, follow=True) as descriptor:
        os.fsync(descriptor)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise an error of the system as `InfrastructureError`, with what to do. `what`: what failed."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "; the disk is full: free some space",
            errno.EDQUOT: "; the disk quota is used up",
            errno.EACCES: "; choose a directory you may write to with --data-dir",
            errno.EPERM: "; choose a directory you may write to with --data-dir",
            errno.EROFS: "; choose a directory you may write to with --data-dir",
        }.get(error.errno or 0, "")
        raise InfrastructureError(codes.CANNOT_WRITE, f"{what}: {error.strerror}{advice}") from error
