"""The directory of a savepoint.

    <name>/manifest.json   format, pipeline, when and by which version it was taken; bytes and SHA-256 of each file
    <name>/pipeline.json   the pipeline that was taken, as its workers read it
    <name>/shape.json      names, kinds and partitions of that pipeline
    <name>/lanes.jsonl     a line for each lane (`lanes`)
    <name>/state/<n>.steps the entries of a lane's state: each step (`millstream.state.v1.Step`) after its length
    <name>/ids/<n>.ids     the digests of ids that a lane remembers, 16 bytes each, the oldest first

Lengths are four bytes, big-endian. The directory gets its name when everything in it is durable, so whatever has a name
is whole, and a process that is killed leaves only a directory whose name begins with a dot.

Above it: whatever takes a savepoint or begins with one. Below it: files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError, InfrastructureError, UserError
from millstream.files import create_private, make_private_directories, sync_path
from millstream.json_parser import parse_json
from millstream.limits import GRPC_MESSAGE_BYTES_MAX
from millstream.nearest import did_you_mean
from millstream.record import ID_DIGEST_BYTES
from millstream_runner.local.directory import explained, make_private
from millstream_runner.local.savepoints.lanes import SavedLane, SavedLanes
from millstream_vertex.keyed.steps import Entries, decode_step

FORMAT = 1
"""Number of the format; a savepoint with another one is refused."""
MANIFEST = "manifest.json"
PIPELINE, SHAPE, LANES = "pipeline.json", "shape.json", "lanes.jsonl"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_UNFINISHED = ".unfinished-"
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 20
_IDS_READ = 4096
"""Digests that are read at once."""


def check_name(name: str) -> None:
    """Raise `UserError` for a name that no savepoint can have."""
    if not _NAME.fullmatch(name):
        raise UserError(
            codes.SAVEPOINT_NOT_TAKEN,
            f"{name!r} cannot be the name of a savepoint: use up to 100 letters, digits, `.`, `-` and `_`, beginning "
            "with a letter or a digit",
        )


def named(parent: Path) -> list[str]:
    """The savepoints in a directory, by name."""
    return sorted(path.parent.name for path in parent.glob(f"*/{MANIFEST}") if _NAME.fullmatch(path.parent.name))


class SavepointWriter:
    """A savepoint that has no name yet. Made by `savepoint_written`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}
        """What the manifest says beside the files."""

    @contextmanager
    def file(self, name: str) -> Iterator[_Digesting]:
        """A file, which is durable after the block."""
        with step("savepoint.file"):
            file = open(create_private(self._path / name), "wb")  # noqa: SIM115  # it is closed below
        with file:
            digesting = _Digesting(file)
            yield digesting
            with step("savepoint.file.sync"):
                file.flush()
                os.fsync(file.fileno())
        self._files[name] = {"bytes": digesting.bytes, "sha256": digesting.sha256}

    def text(self, name: str, text: str) -> None:
        with self.file(name) as file:
            file.write(text.encode())

    def close(self) -> None:
        """Make everything durable, with the manifest."""
        manifest = {"format": FORMAT, **self.facts, "files": self._files}
        with step("savepoint.manifest"):
            file = open(create_private(self._path / MANIFEST), "w", encoding="utf-8")  # noqa: SIM115  # as above
        with file:
            file.write(json.dumps(manifest, indent=1) + "\n")
            with step("savepoint.manifest.sync"):
                file.flush()
                os.fsync(file.fileno())
        for path in (self._path / "state", self._path / "ids", self._path):
            with step("savepoint.sync"):
                sync_path(path)


class _Digesting:
    """Writes a file, and knows what it is."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)

    def write_step(self, data: bytes) -> None:
        self.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def savepoint_written(parent: Path, name: str, whose: Path) -> Iterator[SavepointWriter]:
    """Write a savepoint; it has its name after the block, or nothing has. `whose`: the data directory that it is of,
    which the caller has locked. Raises `UserError` for a name that is in use, and `InfrastructureError`."""
    check_name(name)
    path = parent / name
    refuse_existing(path)
    with explained(f"cannot write the savepoint {path}"):
        make_private(parent)
        # Others may write to the directory at the same time.
        unfinished = parent / f"{_UNFINISHED}{hashlib.sha256(str(whose.absolute()).encode()).hexdigest()[:16]}"
        with step("savepoint.left.remove"), suppress(FileNotFoundError):
            shutil.rmtree(unfinished)
        with step("savepoint.begin"):
            for directory in (unfinished, unfinished / "state", unfinished / "ids"):
                make_private_directories(directory)
        writer = SavepointWriter(unfinished)
        try:
            yield writer
            writer.close()
            # Of another data directory, it may have been made meanwhile.
            refuse_existing(path)
            with step("savepoint.name"):
                os.rename(unfinished, path)
        except BaseException:
            with step("savepoint.abandon"):
                shutil.rmtree(unfinished, ignore_errors=True)
            raise
        with step("savepoint.name.sync"):
            sync_path(parent)


def refuse_existing(path: Path) -> None:
    """Raise `UserError` if there is something of this name."""
    if path.exists() or path.is_symlink():
        raise UserError(
            codes.SAVEPOINT_NOT_TAKEN,
            f"{path} exists already, and a savepoint is never changed: choose another name, or remove that directory",
        )


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that is there."""

    path: Path
    facts: Mapping[str, Any]
    """The manifest."""

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def pipeline(self) -> str:
        return str(self.facts["pipeline"])

    def verify(self) -> None:
        """Raise `DamageError` unless each file is as it was written."""
        for name, fact in self.facts["files"].items():
            path, digest, size = self.path / name, hashlib.sha256(), 0
            try:
                with path.open("rb") as file:
                    while data := file.read(_READ_BYTES):
                        digest.update(data)
                        size += len(data)
            except FileNotFoundError:
                raise _damaged(path, "it is missing") from None
            except OSError as error:
                raise InfrastructureError(codes.CANNOT_READ, f"cannot read {path}: {error.strerror}") from error
            if size != fact["bytes"]:
                raise _damaged(path, f"it has {size:,} bytes instead of {fact['bytes']:,}")
            if digest.hexdigest() != fact["sha256"]:
                raise _damaged(path, "its contents are not what was written (SHA-256)")

    def shape(self) -> dict[str, Any]:
        """The shape of the pipeline that was taken."""
        found: dict[str, Any] = self._json(SHAPE)
        return found

    def lanes(self) -> SavedLanes:
        path = self.path / LANES
        found = []
        for number, line in enumerate(self._read(LANES).splitlines(), 1):
            try:
                found.append(SavedLane.from_line(line))
            except ValueError as error:
                raise _damaged(path, f"line {number}: {error}") from error
        return SavedLanes(found)

    def entries(self, lane: SavedLane) -> Iterator[Entries]:
        """The entries of the state of a lane, some at a time. Raises `DamageError`."""
        if not lane.steps:
            return
        path = self.path / lane.steps
        with explained(f"cannot read {path}"), path.open("rb") as file:
            while head := file.read(_LENGTH_BYTES):
                size = int.from_bytes(head, "big")
                data = file.read(size) if size <= 2 * GRPC_MESSAGE_BYTES_MAX else b""
                if len(head) < _LENGTH_BYTES or len(data) < size:
                    raise _damaged(path, "it ends within a step")
                try:
                    entries = decode_step(data).entries
                except ValueError as error:
                    raise _damaged(path, str(error)) from error
                if any(entries.deleted):
                    raise _damaged(path, "a step has an entry that is gone")
                entries.fill()
                yield entries

    def ids(self, lane: SavedLane) -> Iterator[bytes]:
        """The digests of the ids that a lane remembers, some at a time, the oldest first."""
        if not lane.ids:
            return
        path = self.path / lane.ids
        with explained(f"cannot read {path}"), path.open("rb") as file:
            while digests := file.read(_IDS_READ * ID_DIGEST_BYTES):
                yield digests

    def _json(self, name: str) -> Any:
        try:
            return parse_json(self._read(name))
        except ValueError as error:
            raise _damaged(self.path / name, f"it is not JSON: {error}") from error

    def _read(self, name: str) -> bytes:
        return _read(self.path / name)


def find_savepoint(wanted: str, places: Sequence[Path]) -> Savepoint:
    """A savepoint by its name in one of these directories, or by its path; looked up in that order. Raises `UserError`
    if there is none, and `DamageError` if it cannot be read."""
    parents = places if _NAME.fullmatch(wanted) else ()
    for path in (*(parent / wanted for parent in parents), Path(wanted)):
        if (path / MANIFEST).is_file():
            return _open(path)
    names = sorted({name for parent in places for name in named(parent)})
    there = f"there are: {', '.join(names)}" if names else "there is none"
    raise UserError(
        codes.SAVEPOINT_NOT_USED,
        f"there is no savepoint {wanted!r}: it is not the directory of one, and in {' and '.join(map(str, places))} "
        f"{there}{did_you_mean(wanted, names)}",
    )


def _open(path: Path) -> Savepoint:
    manifest = path / MANIFEST
    try:
        facts = parse_json(_read(manifest))
        number = facts["format"]
        if number != FORMAT:
            raise UserError(
                codes.OTHER_VERSION,
                f"the savepoint {path} has format {number}, and this version of Millstream reads format {FORMAT}: run "
                "the version that took it",
            )
        _ = facts["name"], facts["pipeline"], facts["created_us"], facts["entries"]
        for fact in facts["files"].values():
            _ = fact["bytes"], fact["sha256"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(manifest, f"it is not a manifest: {error!r}") from error
    return Savepoint(path, facts)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except OSError as error:
        raise InfrastructureError(codes.CANNOT_READ, f"cannot read {path}: {error.strerror}") from error


def _damaged(path: Path, what: str) -> DamageError:
    return DamageError(
        codes.SAVEPOINT_DAMAGED, f"{path}: {what}. Nothing was changed. Bring the savepoint back from a copy"
    )
