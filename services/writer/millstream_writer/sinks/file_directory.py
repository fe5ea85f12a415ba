"""The directory of a file sink: what of it is whole, who may add to it, and how a file becomes visible.

    <path>/
      out.map-out.0-…-….jsonl                       finished: whole, durable, final
      .millstream/
        <pipeline>.<vertex>.<checksum of ledger>/   one run of the pipeline
          out.map-out.0.<epoch>/                    one owner of a lane
            0.jsonl                                 unfinished

A file becomes visible by an atomic rename out of its owner's directory. That directory is what fences: whoever takes
the lane over first makes its own, then renames those of earlier epochs away. An owner that was paused finds its
directory gone: it can neither begin a file nor finish one. One that comes late makes its directory, then sees the newer
one and withdraws; of two that open at the same time, at least the older sees the newer, because both make before they
look. What is visible is read only after the fence stands, so it is final.

Above it: the file sink, in its worker thread. Below it: a file system with atomic renames and working fsync.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream.durable import step
from millstream.errors import EnvironmentFault, FencedError, RetryLaterError, UserError
from millstream.record import Position
from millstream_writer.sinks.file_names import FinishedName, how_far, lane_text

_log = logging.getLogger(__name__)

HIDDEN = ".millstream"
_REMOVED = "removed-"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_USERS = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors that another path, or other rights, put right."""


@dataclass(frozen=True, slots=True)
class DirectoryOwner:
    """Who opens a directory: one owner of one lane."""

    pipeline: str
    vertex: str
    lane: str
    """Name of the lane, unique among all lanes of the vertex."""
    epoch: int
    ledger_id: str
    where: str
    """For messages."""


@dataclass(slots=True)
class UnfinishedFile:
    """A file nobody sees yet."""

    path: Path
    descriptor: int
    synced: bool = False
    damaged: bool = False
    """A write or an fsync failed: what of it reached the disk is not known, so it is never made visible."""


class LaneDirectory:
    """One lane's access to the directory, under one epoch. Blocking; used by one thread."""

    def __init__(self, path: Path, owner: DirectoryOwner) -> None:
        self._path = path
        self._owner = owner
        self._lane = lane_text(owner.lane)
        run = f"{owner.pipeline}/{owner.ledger_id}".encode()
        self._run = path / HIDDEN / f"{owner.pipeline}.{owner.vertex}.{zlib.crc32(run):08x}"
        self._own = self._run / f"{self._lane}.{owner.epoch}"
        self._begun = 0

    def open(self) -> None:
        """Make this owner the only one that can add files of the lane.

        Raises `FencedError` when a newer owner is there, and `UserError` when the directory holds files of another run
        of the pipeline, in which positions mean something else.
        """
        with self._explained("cannot use the directory"):
            _make_durably(self._run, self._owner.vertex)
            self._check_run()
            if self._own.exists():
                _remove(self._own, self._owner.vertex)
            with step("file_sink.claim", self._owner.vertex):
                self._own.mkdir()
            for epoch, path in self._owners():
                if epoch > self._owner.epoch:
                    _remove(self._own, self._owner.vertex)
                    raise FencedError(
                        f"{self._owner.where}: {self._path} is in use by a newer owner (epoch {epoch}, ours is "
                        f"{self._owner.epoch})"
                    )
                if epoch < self._owner.epoch:
                    _remove(path, self._owner.vertex)
            for leftover in (self._path / HIDDEN).glob(f"{_REMOVED}*"):
                with step("file_sink.left_over.remove", self._owner.vertex):
                    shutil.rmtree(leftover, ignore_errors=True)
            with step("file_sink.claim.sync", self._owner.vertex):
                _sync_directory(self._run)

    def finished(self) -> Position | None:
        """How far the lane is by its finished files; None without any. Raises `DamageError` when they contradict."""
        with self._explained("cannot list the directory"):
            names = [name for name in self._finished_names() if name.lane == self._lane]
            position, odd = how_far(names, f"{self._owner.where} in {self._path}")
            # A name we rely on must not vanish in a power loss: its owner may have died before it made sure.
            with step("file_sink.finished.sync", self._owner.vertex):
                _sync_directory(self._path)
        for message in odd:
            _log.warning("%s", message)
        return position

    def begin(self, extension: str) -> UnfinishedFile:
        """A new unfinished file. Raises `RetryLaterError` on a full disk."""
        path = self._own / f"{self._begun}.{extension}"
        with self._explained("cannot begin a file"), step("file_sink.begin", self._owner.vertex):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._begun += 1
        return UnfinishedFile(path, descriptor)

    def append(self, file: UnfinishedFile, data: bytes) -> int:
        """Write some or all of `data`; returns how much. Raises `RetryLaterError` when nothing could be written."""
        with self._explained("cannot write"):
            try:
                with step("file_sink.write", self._owner.vertex):
                    return os.write(file.descriptor, data)
            except OSError as error:
                file.damaged = error.errno not in _NO_SPACE
                raise

    def finish(self, file: UnfinishedFile, after: Position, end: Position, extension: str) -> None:
        """Make the file visible, whole and durable. After `RetryLaterError` it may be called again."""
        if file.damaged:
            raise EnvironmentFault(f"{self._owner.where}: {file.path} is damaged and cannot be finished")
        name = FinishedName(self._lane, after, end, self._owner.epoch, extension)
        if not file.synced:
            # After a failed fsync the kernel may have forgotten what it could not write; a second one may succeed and
            # mean nothing. So the file is given up, full disk or not, and the lane goes on from its mark.
            file.damaged = True
            try:
                with step("file_sink.sync", self._owner.vertex):
                    os.fsync(file.descriptor)
            except OSError as error:
                raise EnvironmentFault(
                    f"{self._owner.where}: fsync of {file.path} failed ({error.strerror}); the file is given up. "
                    "Nothing is lost: the lane goes on from its mark. Check the disk."
                ) from error
            file.damaged, file.synced = False, True
        with self._explained("cannot finish a file"), step("file_sink.name", self._owner.vertex):
            os.rename(file.path, self._path / str(name))
        try:
            with step("file_sink.name.sync", self._owner.vertex):
                _sync_directory(self._path)
        except OSError as error:
            file.damaged = True
            raise EnvironmentFault(
                f"{self._owner.where}: fsync of the directory {self._path} failed ({error.strerror}). Nothing is lost: "
                "the lane goes on from its mark and looks at the directory again. Check the disk."
            ) from error
        os.close(file.descriptor)

    def discard(self, file: UnfinishedFile) -> None:
        """Remove an unfinished file, as far as that is possible."""
        with contextlib.suppress(OSError):
            os.close(file.descriptor)
        with contextlib.suppress(OSError), step("file_sink.discard", self._owner.vertex):
            file.path.unlink()

    def _check_run(self) -> None:
        """Refuse a directory in which another run of this vertex has left files; clear its traces if they are gone."""
        tail = f".{self._owner.vertex}."
        others = [
            path
            for path in (self._path / HIDDEN).iterdir()
            if path != self._run and not path.name.startswith(_REMOVED) and path.name[:-8].endswith(tail)
        ]
        if not others:
            return
        left = next((name for name in self._finished_names() if name.lane.startswith(f"{self._owner.vertex}.")), None)
        # Another lane of this run may have cleared the traces meanwhile; then what was found is this run's.
        if left is not None and any(path.exists() for path in others):
            raise UserError(
                f"{self._owner.where}: {self._path} holds files of another pipeline or of a run before the pipeline "
                f"was started over, such as {left}. Move the files away (with {HIDDEN}), or set another path."
            )
        for path in others:
            _remove(path, self._owner.vertex)

    def _owners(self) -> Iterator[tuple[int, Path]]:
        """Directories of this lane's owners, by epoch."""
        pattern = re.compile(re.escape(self._lane) + r"\.(\d+)")
        for path in list(self._run.iterdir()):
            match = pattern.fullmatch(path.name)
            if match is not None:
                yield int(match[1]), path

    def _finished_names(self) -> list[FinishedName]:
        with os.scandir(self._path) as entries:
            names = [FinishedName.parse(entry.name) for entry in entries]
        return [name for name in names if name is not None]

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Errors of the operating system as ours."""
        try:
            yield
        except OSError as error:
            at = f"{self._owner.where}: {what}: {error.strerror or error}: {error.filename or self._path}"
            if error.errno in _NO_SPACE:
                raise RetryLaterError(f"{at}. The lane waits; make room.") from error
            if error.errno == errno.ENOENT and self._path.exists():
                raise FencedError(f"{self._owner.where}: another owner of the lane uses {self._path} now") from error
            if error.errno in _USERS:
                raise UserError(f"{at}. Choose another path, or change its rights.") from error
            raise EnvironmentFault(f"{at}. Nothing is lost: the lane goes on from its mark.") from error


def _make_durably(path: Path, vertex: str) -> None:
    """Make a directory and its parents, so that a power loss does not take them away."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with step("file_sink.directory", vertex):
            directory.mkdir(exist_ok=True)
        with step("file_sink.directory.sync", vertex):
            _sync_directory(directory.parent)


def _remove(path: Path, vertex: str) -> None:
    """Remove a directory in one step, then its contents. Somebody else may be doing the same."""
    removed = path.parent
    while removed.name != HIDDEN:
        removed = removed.parent
    removed = removed / f"{_REMOVED}{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError), step("file_sink.remove.hide", vertex):
        path.rename(removed)
    with step("file_sink.remove", vertex):
        shutil.rmtree(removed, ignore_errors=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
