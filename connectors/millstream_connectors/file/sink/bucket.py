"""The prefix of a file sink in an object store: which objects are complete, who may add objects, how an object becomes
visible.

    <prefix>/
      dt=2024-01-31/out.map-out.0.1c291ca3-…-….parquet       finished: complete, final
      _millstream/<pipeline>.<lane>/
        0000000000000007.json                                a claim

An object store has no rename and no lock, but it can create an object only if its name is free. So an owner claims the
next number before it puts the objects of a file: the claim contains the range of records and the names of the objects.
Only one owner can create the claim; all others find the number taken. The next owner puts exactly these objects, again
only if their names are free. So it does not matter which of two owners puts them: the records are the same.

    claim 7: records 1200 to 1800, epoch 3 ─► put each object, if it is not there ─► claim 8 ─► …

Opening a lane creates a claim without records, under the owner's epoch. A former owner finds the number taken when it
begins its next file, and stops. Only the newest claim is read: it contains the last claim with records.

Above it: the file sink, in its worker thread. Below it: obstore, an extra.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import obstore

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError, FencedError, RetryLaterError, UserError
from millstream.json_parser import parse_json
from millstream.record import Position
from millstream_connectors.file.settings import FileSink
from millstream_connectors.file.sink.names import FinishedName, lane_text
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.kept import TargetPosition
from millstream_connectors.shared.objects.settings import ObjectStore, ObjectUrl, parse_url
from millstream_connectors.shared.objects.stores import FAILURES, TAKEN, error_of, listed, make_store
from millstream_writer.connector import SinkOwner

HIDDEN = "_millstream"
_CLAIMS_KEPT = 20
_PART_BYTES = 16 * 1024
"""What is appended is joined to parts of this size, so that a file of small frames does not become many small writes
to a connection."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """An owner's decision about the next records of its lane."""

    run: str
    epoch: int
    owner: str
    """Its identity, new for each epoch in a process."""
    after: Sequence[int]
    """The records of the newest file are after this position, up to `end`."""
    end: Sequence[int]
    file_epoch: int
    """Epoch of the owner that claimed the file."""
    extension: str
    layout: str
    """Other settings that determine the contents of the objects: columns and partitions."""
    frame: str
    """Name of the frame with the last record."""
    done: bool
    """Whether all objects of the file exist."""


@dataclass(slots=True)
class UnfinishedObjects:
    """The objects of one file, in memory until they are put."""

    parts: dict[str, list[bytes]] = field(default_factory=dict)
    put: set[str] = field(default_factory=set)
    claimed: Claim | None = None


class LaneBucket:
    """One lane's access to the prefix, under one epoch. Blocking; used by one thread, except that another one may call
    `begin` and `append`, which concern only the file."""

    def __init__(self, spec: FileSink, owner: SinkOwner) -> None:
        """Raises `UserError` for missing credentials."""
        url = parse_url(spec.path)
        self._url = ObjectUrl(url.scheme, url.bucket, url.key.strip("/"))
        self._store = make_store(self._url, spec.store or ObjectStore(), owner.base_dir, owner.where)
        self._layout = _layout(spec)
        self._partitioned = bool(spec.partition_by)
        self._owner = owner
        self.name = owner.identity
        run = zlib.crc32(f"{owner.pipeline}/{owner.ledger_id}".encode())
        self._lane = f"{lane_text(owner.name)}.{run:08x}"
        self._claims = self._key(HIDDEN, f"{owner.pipeline}.{lane_text(owner.name)}")
        self.target = str(self._url)
        self.remedy = f"remove the objects below {self._url.root}/{self._claims}/"
        self._number = -1
        """Number of the newest known claim."""
        self._listed: list[int] = []
        """Numbers of all claims, as listed after this owner's newest one was created; in order."""
        self._last: Claim | None = None

    # Opening: `look`, then `take_over`.

    def look(self) -> TargetPosition | None:
        """The lane's position from the newest claim; None without one. Raises Millstream errors."""
        with translating(FAILURES, self._error):
            self._read_last()
            last = self._last
            if last is None:
                self._check_orphans()
                return None
            if not last.done and not self._partitioned and last.layout == self._layout and self._is_there(last):
                self._last = last = replace(last, done=True)
        position = max(Position(*last.end), self._owner.start)
        frame = last.frame if Position(*last.end) == position else ""
        return TargetPosition(last.run, last.epoch, last.owner, position, frame)

    def _is_there(self, claim: Claim) -> bool:
        """Whether its object exists."""
        try:
            obstore.head(self._store, self._key(str(self._file_name(claim))))
        except FileNotFoundError:
            return False
        return True

    def _file_name(self, claim: Claim) -> FinishedName:
        return FinishedName(self._lane, Position(*claim.after), Position(*claim.end), claim.file_epoch, claim.extension)

    def take_over(self) -> Position:
        """Fence every earlier owner; returns the lane's certain position. Raises Millstream errors."""
        owner = self._owner
        while True:
            last = self._last or self._new_claim(owner.start, owner.start, extension="", layout="", frame="")
            claim = replace(
                last,
                run=owner.ledger_id,
                epoch=owner.epoch,
                owner=self.name,
                done=last.done or owner.fallback or Position(*last.end) <= owner.start,
            )
            if self._claim(claim):
                break
            if self._last is not None and self._last.epoch >= owner.epoch and self._last.owner != self.name:
                raise self._fenced()
        # Here, too, so that lanes that are opened often and write nothing do not leave more and more claims.
        self._remove_old()
        return max(owner.start, Position(*(claim.end if claim.done else claim.after)))

    def begun(self) -> Position | None:
        """The end of a claimed file that may be unfinished. Raises `UserError` if the file cannot be recreated with the
        current settings."""
        last = self._last
        assert last is not None, "the lane has been taken over"
        if last.done:
            return None
        if last.layout != self._layout:
            raise UserError(
                codes.CONNECTOR_SETTINGS,
                f"{self._owner.where}: a file in {self._url} was being finished when the pipeline stopped, with "
                "other settings of `format`, `columns` or `partitionBy`. Run the pipeline with those settings "
                "until it is idle, and then change them",
            )
        return Position(*last.end)

    # Writing.

    def begin(self, extension: str) -> UnfinishedObjects:
        """The objects of a new file."""
        return UnfinishedObjects()

    def append(self, file: UnfinishedObjects, data: bytes, partition: str) -> int:
        """Keep a file until it is put."""
        parts = file.parts.setdefault(partition, [])
        if parts and len(parts[-1]) + len(data) <= _PART_BYTES:
            parts[-1] += data
        else:
            parts.append(data)
        return len(data)

    def finish(self, file: UnfinishedObjects, after: Position, end: Position, extension: str, frame: str) -> None:
        """Put the objects. After `RetryLaterError` it may be called again."""
        last = self._last
        assert last is not None, "the lane has been taken over"
        if file.claimed is None:
            if not last.done and Position(*last.end) == end:
                # A file that was claimed before this lane was opened.
                file.claimed = last
            else:
                claim = self._new_claim(after, end, extension=extension, layout=self._layout, frame=frame)
                if not self._claim(claim):
                    raise self._fenced()
                file.claimed = claim
        claimed = file.claimed
        name = self._file_name(claimed)
        for partition, parts in file.parts.items():
            if partition not in file.put:
                self._put(self._key(partition, str(name)), parts)
                file.put.add(partition)
        self._last = replace(claimed, done=True)
        self._remove_old()

    def discard(self, file: UnfinishedObjects) -> None:
        """The file is only in memory."""

    def close(self) -> None:
        """There is no connection to close."""

    # Requests.

    def _put(self, key: str, parts: Sequence[bytes]) -> None:
        """Put an object of a claimed file, unless it exists. The parts are sent without a joined copy."""
        # In one request, so that no partial upload is left. It may be there: put by this owner, whose answer was lost,
        # or by another one with the same claim.
        with translating(FAILURES, self._error), suppress(TAKEN), step("object_sink.put", self._owner.lane.vertex):
            obstore.put(self._store, key, parts, mode="create", use_multipart=False)

    def _new_claim(self, after: Position, end: Position, *, extension: str, layout: str, frame: str) -> Claim:
        owner = self._owner
        return Claim(
            run=owner.ledger_id, epoch=owner.epoch, owner=self.name, after=list(after), end=list(end),
            file_epoch=owner.epoch, extension=extension, layout=layout, frame=frame, done=False,
        )  # fmt: skip

    def _claim(self, claim: Claim) -> bool:
        """Try to claim the next number. If another owner has it, the newest claim is known afterwards."""
        number = self._number + 1
        with translating(FAILURES, self._error):
            try:
                with step("object_sink.claim", self._owner.lane.vertex):
                    obstore.put(
                        self._store,
                        self._claim_key(number),
                        json.dumps(asdict(claim)).encode(),
                        mode="create",
                        use_multipart=False,
                    )
            except TAKEN:
                found = self._read(number)
                if found is None or (found.owner, found.end) != (self.name, claim.end):
                    self._read_last()
                    return False
            # A paused owner may create a number that was removed; then newer ones exist. All are listed: Azure's
            # services differ in where a listing with an offset begins, and some of them return nothing.
            listed = self._numbers()
        newest = max(listed, default=-1)
        if newest > number:
            raise self._fenced()
        if newest < number:
            # A listing without this claim may lack newer ones, too.
            what = f"{self._owner.where}: {self._url} does not list the claim {number} that it has just stored"
            raise RetryLaterError(codes.TARGET_AWAY, what)
        self._number, self._last, self._listed = number, claim, listed
        return True

    def _read_last(self) -> None:
        numbers = self._numbers()
        self._number = numbers[-1] if numbers else -1
        self._last = self._read(self._number) if numbers else None

    def _numbers(self) -> list[int]:
        stems = [meta["path"].rpartition("/")[2].removesuffix(".json") for meta in listed(self._store, self._claims)]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _read(self, number: int) -> Claim | None:
        try:
            data = bytes(obstore.get(self._store, self._claim_key(number)).bytes())
        except FileNotFoundError:
            return None
        try:
            return Claim(**parse_json(data))
        except (ValueError, TypeError) as error:
            raise DamageError(
                codes.TARGET_POSITION_LOST,
                f"{self._owner.where}: {self._url.root}/{self._claim_key(number)} is not a claim of a lane. Restore it",
            ) from error

    def _remove_old(self) -> None:
        """Remove obsolete claims, if there are many; the last ones stay for users to inspect."""
        if len(self._listed) <= 2 * _CLAIMS_KEPT:
            return
        old, kept = self._listed[:-_CLAIMS_KEPT], self._listed[-_CLAIMS_KEPT:]
        try:
            with step("object_sink.claims.remove", self._owner.lane.vertex):
                obstore.delete(self._store, [self._claim_key(number) for number in old])
        except FAILURES as error:
            _log.warning("%s; old claims are removed later", self._error(error))
        else:
            self._listed = kept

    def _check_orphans(self) -> None:
        """Raises `DamageError` if objects of this run after the mark exist, and the claims are missing."""
        if self._owner.start == Position(0) or self._owner.fallback:
            return
        for page in obstore.list(self._store, self._url.key or None):
            for meta in page:
                name = FinishedName.parse(meta["path"].rpartition("/")[2])
                if name is not None and name.lane == self._lane and name.end > self._owner.start:
                    raise DamageError(
                        codes.TARGET_POSITION_LOST,
                        f"{self._owner.where}: the claims of the lane in {self._url.root}/{self._claims} are "
                        f"missing, but {meta['path']} has records after the lane's mark. Restore the claims; or "
                        "remove this object and all objects of the lane that sort after it, and their records are "
                        "written again",
                    )

    def _key(self, *parts: str) -> str:
        return "/".join(part for part in (self._url.key, *parts) if part)

    def _claim_key(self, number: int) -> str:
        return f"{self._claims}/{number:016}.json"

    def _fenced(self) -> FencedError:
        return FencedError(
            codes.OUTPUT_TAKEN_OVER, f"{self._owner.where}: {self._url} is in use by a newer owner of the lane"
        )

    def _error(self, error: BaseException) -> Any:
        return error_of(error, self._url, self._owner.where)


def _layout(spec: FileSink) -> str:
    text = f"{spec.format} {[(column.name, column.type) for column in spec.columns]} {list(spec.partition_by)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def try_prefix(spec: FileSink, base_dir: FilePath) -> None:
    """Raises Millstream errors for problems that a listing shows; nothing is written."""
    url = parse_url(spec.path)
    store = make_store(url, spec.store or ObjectStore(), base_dir, "validate")
    with translating(FAILURES, partial(error_of, url=url, where="validate")):
        next(iter(obstore.list(store, f"{url.key.strip('/')}/{HIDDEN}".lstrip("/"))), None)
