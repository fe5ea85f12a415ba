"""The directory of a file sink: which files are complete, who may add files, and how a file becomes visible.

    <path>/
      out.map-out.0-…-….jsonl                       finished: complete, durable, final
      .millstream/
        <pipeline>.<vertex>.<checksum of ledger>/   one run of the pipeline; locked while one of its owners runs
          out.map-out.0.<epoch>/                    one owner of a lane
            0.jsonl                                 unfinished
            0.jsonl=out.map-out.0-…-….jsonl.note    a note: the name this file gets next; in it, its last frame's name
          out.map-out.0.<epoch>.over/               an owner that was replaced (.over.1 if the epoch had one before)

A file becomes visible by an atomic rename out of its owner's directory. That directory is the fence: the owner that
takes the lane over first creates its own, then renames those of earlier epochs. A paused owner finds its directory
gone: it can neither begin a file nor finish one. A late owner creates its directory, then sees the newer one and
withdraws. If two owners open at the same time, at least the older one sees the newer one, because both create their
directories before they check. Visible files are read only after the fence is in place, so they are final.

Users may move a file away as soon as they see it, so its name alone does not determine the lane's position. A note is
durable before the rename: if the file that it describes is no longer beside it, that file was made visible. A new owner
copies the last note (`=<name>.note`) before it removes what its predecessors left. A position alone does not show
whether a file belongs to the current contents of the ledger, so a note also has the name of the last frame in its file.

Above it: the file sink, in its worker thread. Below it: a file system with atomic renames and working fsync.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shlex
import shutil
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millstream import codes
from millstream.durable import step
from millstream.errors import FencedError, InfrastructureError, RetryLaterError, UserError
from millstream.files import directories_to_sync, opened_directory, sync_path
from millstream.record import Position
from millstream_connectors.file.sink.names import FinishedName, how_far, lane_text
from millstream_connectors.shared.kept import unknown
from millstream_writer.connector import SinkOwner

_log = logging.getLogger(__name__)

HIDDEN = ".millstream"
_REMOVED = "removed-"
_OVER = ".over"
_NOTE = "="
_OF_NOTES = ".note"
"""Suffix of notes, so that programs that search all directories for results do not mistake a note for one."""
_NOTE_CHARS_MAX = 4096
_A_LINK = "a link is in the place of a directory of Millstream"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_USERS = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors that another path or other permissions fix."""


class FileNote(NamedTuple):
    """What a note says about a file that was made visible."""

    file: FinishedName
    frame: str
    """Name of the frame with its last record; empty if the note has none."""


@dataclass(slots=True)
class UnfinishedFile:
    """A file that is not visible yet."""

    path: Path
    descriptor: int
    note: Path | None = None
    """The note with the name under which the file is about to become visible. If the note exists without the file, the
    file is visible."""
    synced: bool = False
    damaged: bool = False
    """Whether a write or an fsync failed. It is unknown what reached the disk, so the file is never made visible."""


class LaneDirectory:
    """One lane's access to the directory, under one epoch. Blocking; used by one thread."""

    def __init__(self, path: Path, owner: SinkOwner) -> None:
        self._path = path
        self._owner = owner
        self._vertex = owner.lane.vertex
        self._lane = lane_text(owner.name)
        run = f"{owner.pipeline}/{owner.ledger_id}".encode()
        self._run = path / HIDDEN / f"{owner.pipeline}.{self._vertex}.{zlib.crc32(run):08x}"
        self._own = self._run / f"{self._lane}.{owner.epoch}"
        self._begun = 0
        self._lock: int | None = None
        """Descriptor of the directory of this run, which is locked."""
        self._note: Path | None = None
        """End of the last finished file."""
        self.noted: FileNote | None = None
        """The last file of the lane's former owners, according to their notes; None without one."""

    def open(self) -> None:
        """Make this owner the only one that can add files of the lane. `close` must follow.

        Raises `FencedError` if there is a newer owner, `UserError` if the directory contains files of another run of
        the pipeline, whose positions have a different meaning, or if another run uses it now, and `DamageError` if it
        should know the lane and does not. In these cases nothing was changed.
        """
        with self._explained("cannot use the directory"):
            self._other_runs()
            if self._owner.must_be_known and not self._knows_the_lane():
                raise unknown(self._owner, f"the directory {self._path}", f"`{self.by_hand}`, or set another path")
            if (self._path / HIDDEN).is_symlink():
                raise OSError(errno.ELOOP, _A_LINK, str(self._path / HIDDEN))
            _make_durably(self._run, self._vertex)
            try:
                self._lock = _lock(self._run, fcntl.LOCK_SH)
                # Another run may have checked before it could see this one.
                others = self._other_runs()
            except UserError:
                self._withdraw()
                raise
            for path in others:
                _remove(path, self._vertex)
            self._claim()
            for leftover in (self._path / HIDDEN).glob(f"{_REMOVED}*"):
                with step("file_sink.left_over.remove", self._vertex):
                    shutil.rmtree(leftover, ignore_errors=True)

    def close(self) -> None:
        """Release the directory for other runs. Unfinished files stay; see `discard`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def finished(self) -> Position | None:
        """The lane's position from its finished files; None if there are none. Raises `DamageError` if the names of its
        files contradict each other."""
        with self._explained("cannot list the directory"):
            names = [name for name in self._finished_names() if name.lane == self._lane]
        position, odd = how_far(names, f"{self._owner.where} in {self._path}")
        for message in odd:
            _log.warning("%s", message)
        carried = self.noted.file.end if self.noted is not None else None
        return max((at for at in (position, carried) if at is not None), default=None)

    def begin(self, extension: str) -> UnfinishedFile:
        """Create an unfinished file. Raises `RetryLaterError` if the disk is full."""
        path = self._own / f"{self._begun}.{extension}"
        self._begun += 1
        with self._explained("cannot create a file"), step("file_sink.begin", self._vertex):
            descriptor = self._create(path)
        return UnfinishedFile(path, descriptor)

    def append(self, file: UnfinishedFile, data: bytes, partition: str = "") -> int:
        """Write some or all of `data`; returns the number of bytes. Raises `RetryLaterError` if nothing could be
        written.

        A directory has no partitions.
        """
        with self._explained("cannot write"):
            try:
                with step("file_sink.write", self._vertex):
                    return os.write(file.descriptor, data)
            except OSError as error:
                file.damaged = error.errno not in _NO_SPACE
                raise

    def finish(self, file: UnfinishedFile, after: Position, end: Position, extension: str, frame: str = "") -> None:
        """Make the file visible, complete and durable. After `RetryLaterError` it may be called again.

        `frame` is the name of the frame with its last record.
        """
        if file.damaged:
            raise InfrastructureError(
                codes.SINK_FILE_DAMAGED, f"{self._owner.where}: {file.path} is damaged and cannot be finished"
            )
        name = FinishedName(self._lane, after, end, self._owner.epoch, extension)
        if not file.synced:
            # After a failed fsync, the kernel may have dropped the unwritten data, and a second fsync may succeed
            # without having written it. So the file is abandoned, whether or not the disk is full, and the lane
            # continues from its mark.
            file.damaged = True
            try:
                with step("file_sink.sync", self._vertex):
                    os.fsync(file.descriptor)
            except OSError as error:
                raise InfrastructureError(
                    codes.FSYNC_FAILED,
                    f"{self._owner.where}: fsync of {file.path} failed ({error.strerror}); the file is abandoned. "
                    "Nothing is lost: the lane continues from its mark. Check the disk.",
                ) from error
            file.damaged, file.synced = False, True
        with self._explained("cannot finish a file"):
            file.note = self._own / f"{file.path.name}{_NOTE}{name}{_OF_NOTES}"
            self._write_note(file.note, frame, file)
            with step("file_sink.name", self._vertex):
                os.rename(self._relative(file.path), self._path / str(name), src_dir_fd=self._held)
        with self._given_up(file, self._path), step("file_sink.name.sync", self._vertex):
            sync_path(self._path)
        os.close(file.descriptor)
        if self._note is not None:
            with contextlib.suppress(OSError), step("file_sink.note.remove", self._vertex):
                os.unlink(self._relative(self._note), dir_fd=self._held)
        self._note = file.note

    def discard(self, file: UnfinishedFile) -> None:
        """Remove an unfinished file, as far as that is possible."""
        with contextlib.suppress(OSError):
            os.close(file.descriptor)
        with contextlib.suppress(OSError):
            if file.note is not None:
                # A note without its file would mean that the file was made visible.
                with step("file_sink.discard.note", self._vertex):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._relative(file.note), dir_fd=self._held)
                    self._sync_own()
            with step("file_sink.discard", self._vertex):
                os.unlink(self._relative(file.path), dir_fd=self._held)

    def _write_note(self, path: Path, frame: str, file: UnfinishedFile | None = None) -> None:
        """Write a durable note with the last frame of a file."""
        with contextlib.ExitStack() as stack:
            with step("file_sink.note", self._vertex):
                with contextlib.suppress(FileNotFoundError):
                    # It is there if an earlier try was cut short.
                    os.unlink(self._relative(path), dir_fd=self._held)
                note = stack.enter_context(open(self._create(path), "wb"))
                note.write(frame.encode())
                note.flush()
            with self._given_up(file, self._own), step("file_sink.note.sync", self._vertex):
                os.fsync(note.fileno())
                self._sync_own()

    # The owner of the sink's directory may be another user, who can put links, and directories of his own, in place of
    # ours. The descriptor of the run's directory leads to the one that was locked, and no link below it is followed.

    @property
    def _held(self) -> int:
        """The descriptor of the run's directory."""
        if self._lock is None:
            raise FileNotFoundError(errno.ENOENT, "the directory was released", str(self._own))
        return self._lock

    def _relative(self, path: Path) -> str:
        """A file of this owner, relative to the run's directory."""
        return f"{self._own.name}/{path.name}"

    def _create(self, path: Path) -> int:
        """Create a file of this owner, and open it for writing."""
        with self._opened_own() as own:
            return os.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=own)

    def _sync_own(self) -> None:
        with self._opened_own() as own:
            os.fsync(own)

    @contextlib.contextmanager
    def _opened_own(self) -> Iterator[int]:
        """The descriptor of this owner's directory. Raises `FileNotFoundError` if the owner was replaced, or if the
        directory of the run is another one now."""
        if not os.path.samestat(os.stat(self._run), os.fstat(self._held)):
            raise FileNotFoundError(errno.ENOENT, "another directory is in its place", str(self._run))
        try:
            with opened_directory(self._own.name, within=self._held) as own:
                yield own
        except OSError as error:
            error.filename = str(self._own if error.filename in (None, self._own.name) else self._own / error.filename)
            raise

    @contextlib.contextmanager
    def _given_up(self, file: UnfinishedFile | None, directory: Path) -> Iterator[None]:
        """fsync a directory. After a failure, this owner neither relies on it nor syncs it again."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if file is not None:
                file.damaged = True
            raise InfrastructureError(
                codes.FSYNC_FAILED,
                f"{self._owner.where}: fsync of the directory {directory} failed ({error.strerror}). Nothing is "
                "lost: the lane continues from its mark and reads the directory again. Check the disk.",
            ) from error

    def _claim(self) -> None:
        """Fence every earlier owner of the lane, and continue from their notes."""
        if self._own.exists():
            # The ledger was set back to before that owner, whose notes show which files it has made visible; or an
            # opening under this epoch was cut short.
            self._fence(self._own)
        try:
            with step("file_sink.claim", self._vertex):
                self._own.mkdir()
            self._replace()
        except OSError:
            # Its notes are still only copies. What cannot be removed is fenced by the next opening.
            with contextlib.suppress(OSError):
                _remove(self._own, self._vertex)
            raise
        for path in self._replaced():
            _remove(path, self._vertex)

    def _replace(self) -> None:
        """Fence the earlier owners, with our own directory in place."""
        owners = list(self._owners())
        newest = max((epoch for epoch, _ in owners), default=self._owner.epoch)
        if newest > self._owner.epoch:
            _remove(self._own, self._vertex)
            raise FencedError(
                codes.OUTPUT_TAKEN_OVER,
                f"{self._owner.where}: {self._path} is in use by a newer owner (epoch {newest}, ours is "
                f"{self._owner.epoch})",
            )
        for epoch, path in owners:
            if epoch < self._owner.epoch:
                self._fence(path)
        # A name that we rely on must survive a power loss: its owner may have died before it synced the directory.
        with step("file_sink.finished.sync", self._vertex):
            sync_path(self._path)
        noted = self._noted()
        if noted is not None:
            self.noted = noted
            self._note = self._own / f"{_NOTE}{noted.file}{_OF_NOTES}"
            self._write_note(self._note, noted.frame)
        with step("file_sink.claim.sync", self._vertex):
            sync_path(self._run)

    def _fence(self, path: Path) -> None:
        """Rename the directory of an owner, so that it can finish no more files."""
        fenced, number = path.with_name(path.name + _OVER), 0
        while True:
            try:
                with contextlib.suppress(FileNotFoundError), step("file_sink.fence", self._vertex):
                    path.rename(fenced)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            # Another owner of this epoch was replaced before, by an opening that did not come to its end.
            number += 1
            fenced = path.with_name(f"{path.name}{_OVER}.{number}")

    def _noted(self) -> FileNote | None:
        """The last file that a replaced owner has certainly made visible, whether or not it still exists."""
        while True:
            try:
                notes = [note for path in self._replaced() for note in _made_visible(path)]
            except FileNotFoundError:
                # Another owner has removed it, after it had noted what it found there.
                continue
            # An owner that died while it copied a note has left two copies, the second perhaps incomplete.
            return max(notes, key=lambda note: (note.file.end, len(note.frame)), default=None)

    @property
    def by_hand(self) -> str:
        """The command that lets the lane continue after its mark in an empty directory: it adds an earlier owner, which
        has written nothing."""
        return f"mkdir -p {shlex.quote(str(self._run / f'{self._lane}.0'))}"

    def _knows_the_lane(self) -> bool:
        """Whether the lane has had an owner here. A lane always leaves a directory: a new owner creates its own before
        it removes the others."""
        return any(self._owners()) or bool(self._replaced())

    def _other_runs(self) -> list[Path]:
        """Directories of other runs of this vertex, which have ended and left no file.

        Raises `UserError` if one of them has not ended, or has left files.
        """
        others = [path for path in runs_of(self._path, self._vertex) if path != self._run]
        # A run whose directory no owner has claimed has never written anything.
        claimed = [path for path in others if _entries(path)]
        for path in claimed:
            if not is_free(path):
                raise UserError(
                    codes.OUTPUT_IN_USE,
                    f"{self._owner.where}: another run is writing to {self._path} (as {path.name}). End that run, "
                    "or set another path",
                )
        left = next((name for name in self._finished_names() if name.lane.startswith(f"{self._vertex}.")), None)
        if left is not None and (claimed or not _entries(self._run)):
            raise UserError(
                codes.OUTPUTS_OF_EARLIER_RUN,
                f"{self._owner.where}: {self._path} holds files of another pipeline, or of a run from before the "
                f"pipeline was started over, such as {left}. Set another path, or move the files away together with "
                f"{HIDDEN}: the run that wrote them needs both to continue",
            )
        return [path for path in others if is_free(path)]

    def _withdraw(self) -> None:
        """Remove everything of a refused run."""
        self.close()
        # It is not empty if another lane of this run uses it.
        with contextlib.suppress(OSError), step("file_sink.withdraw", self._vertex):
            self._run.rmdir()

    def _replaced(self) -> list[Path]:
        """Directories of this lane's owners that were replaced."""
        pattern = re.compile(re.escape(self._lane) + r"\.\d+" + re.escape(_OVER) + r"(\.\d+)?")
        return [path for path in _entries(self._run) if pattern.fullmatch(path.name)]

    def _owners(self) -> Iterator[tuple[int, Path]]:
        """Directories of this lane's owners, by epoch."""
        pattern = re.compile(re.escape(self._lane) + r"\.(\d+)")
        for path in _entries(self._run):
            match = pattern.fullmatch(path.name)
            if match is not None:
                yield int(match[1]), path

    def _finished_names(self) -> list[FinishedName]:
        names = [FinishedName.parse(path.name) for path in _entries(self._path)]
        return [name for name in names if name is not None]

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Converts errors of the operating system to Millstream errors."""
        try:
            yield
        except OSError as error:
            at = f"{self._owner.where}: {what}: {error.strerror or error}: {error.filename or self._path}"
            if error.errno in _NO_SPACE:
                raise RetryLaterError(codes.DISK_FULL, f"{at}. The lane waits. Free some space on the disk.") from error
            if error.errno == errno.ENOENT and self._path.exists():
                raise FencedError(
                    codes.OUTPUT_TAKEN_OVER, f"{self._owner.where}: another owner of the lane is now using {self._path}"
                ) from error
            if error.errno in _USERS:
                raise UserError(codes.SINK_PATH, f"{at}. Choose another path, or change its permissions.") from error
            raise InfrastructureError(
                codes.CANNOT_WRITE, f"{at}. Nothing is lost: the lane continues from its mark."
            ) from error


def _entries(path: Path) -> list[Path]:
    """The entries of a directory; none if it does not exist."""
    try:
        return list(path.iterdir())
    except FileNotFoundError:
        return []


def _made_visible(owner: Path) -> list[FileNote]:
    """Files of a replaced owner that were made visible, according to its notes. Raises `FileNotFoundError` if its
    directory is gone."""
    found = []
    for entry in owner.iterdir():
        unfinished, is_note, name = entry.name.partition(_NOTE)
        # Notes of earlier versions have no suffix.
        finished = FinishedName.parse(name.removesuffix(_OF_NOTES)) if is_note else None
        if finished is not None and not (unfinished and (owner / unfinished).exists()):
            found.append(FileNote(finished, _read_note(entry)))
    return found


def _read_note(path: Path) -> str:
    """The contents of a note. Raises `OSError` for a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        return file.read(_NOTE_CHARS_MAX)


def _lock(path: Path, kind: int) -> int | None:
    """A descriptor that holds the lock on the directory of a run, if the file system supports locks; None if the lock
    is taken. Raises `OSError` if a link leads there, other than on the way to the sink's directory."""
    with (
        opened_directory(path.parent.parent, follow=True) as top,
        opened_directory(path.parent.name, within=top) as hidden,
        opened_directory(path.name, within=hidden) as run,
    ):
        descriptor = os.dup(run)
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass  # no locks there: then only the files show which run owns the directory
    return descriptor


def runs_of(path: Path, vertex: str) -> list[Path]:
    """The directories of runs of a vertex with this name, in a file sink's directory."""
    return [
        entry
        for entry in _entries(path / HIDDEN)
        if not entry.name.startswith(_REMOVED) and entry.name[:-8].endswith(f".{vertex}.")
    ]


def is_free(run: Path) -> bool:
    """Whether no owner of that run is running."""
    try:
        descriptor = _lock(run, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _make_durably(path: Path, vertex: str) -> None:
    """Create a directory and its parents so that they survive a loss of power."""
    for directory in directories_to_sync(path):
        with step("file_sink.directory", vertex):
            directory.mkdir(exist_ok=True)
        with step("file_sink.directory.sync", vertex):
            sync_path(directory.parent)


def _remove(path: Path, vertex: str) -> None:
    """Remove a directory in one step, then its contents. Another process may be doing the same."""
    hidden = next(parent for parent in path.parents if parent.name == HIDDEN)
    removed = hidden / f"{_REMOVED}{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError), step("file_sink.remove.hide", vertex):
        path.rename(removed)
    with step("file_sink.remove", vertex):
        shutil.rmtree(removed, ignore_errors=True)
