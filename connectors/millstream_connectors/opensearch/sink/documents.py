"""Records as lines of a bulk request, and the answer for each record. Pure.

    insert    create, with an id made of run and record: an existing document is this one
    upsert    index or delete, with the record's document id and a version: a newer document stays

A version combines the number of the lane's owner with the record's place, so it increases with every record of a lane
and with every owner. A late write of an older owner or of an older request cannot replace a newer document.

Above it: the lane. Below it: frames.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millstream.json_text import all_json
from millstream.limits import FRAME_INDEX_BITS
from millstream_connectors.opensearch.settings import OpenSearchSink
from millstream_connectors.shared.carried import keys_text, message_id
from millstream_connectors.shared.json_rows import json_objects, one_line
from millstream_connectors.shared.tables.rows import deletes_of, members_of
from millstream_writer.sink import SinkFailure, SinkFrame

ID_BYTES_MAX = 512
NO_ID = "record has no document id"
ID_TOO_LONG = "document id is too long"
TOO_LARGE = "record is too large for OpenSearch"
BUSY = "OpenSearch is busy"
CONFLICT = 409
"""Status of a write that was rejected because the document exists, or is newer."""

_FRAME_BITS = 28
FRAMES_MAX = 1 << _FRAME_BITS
"""Number of frames after which an owner needs a new number."""
OWNERS_MAX = 1 << (63 - _FRAME_BITS - FRAME_INDEX_BITS)
"""Upper limit of the owners' numbers; a version has 63 bits."""

_BLANK = b" \t\n\r"
_WAITING = frozenset((429, 500, 502, 503, 504))
_BLOCKED = "cluster_block_exception"
_ALL_RECORDS = frozenset(("index_not_found_exception", "security_exception"))
"""Types of errors that concern all records, not one."""


class Put(NamedTuple):
    """The write of one record."""

    row: int
    lines: bytes
    """Lines of the request, with their line breaks."""
    id: str = ""
    """Id of the document if a newer version of it may exist."""
    number: int = 0
    """Index of its frame in the write."""

    @property
    def size(self) -> int:
        """Bytes of the lines."""
        return len(self.lines)


class OwnerVersions(NamedTuple):
    """The versions that an owner of a lane writes."""

    number: int
    """Number of the owner, from 1."""
    first: int
    """Sequence of the owner's first frame."""

    def version(self, sequence: int, index: int) -> int:
        """The version for a record, by its index in the frame with this sequence."""
        assert 0 <= sequence - self.first < FRAMES_MAX, "the lane has taken a new number"
        assert index < 1 << FRAME_INDEX_BITS, "frames are cut to fewer"
        return (((self.number << _FRAME_BITS) + sequence - self.first) << FRAME_INDEX_BITS) + index

    def is_newer(self, version: int) -> bool:
        """Whether a version was written by a later owner."""
        return version >> (_FRAME_BITS + FRAME_INDEX_BITS) > self.number


class Misfit(NamedTuple):
    """Why a record was not written, according to the answer."""

    reason: str
    detail: str
    retryable: bool
    everything: bool = False
    """Whether the reason concerns all records: the index is missing, or the user lacks a permission."""


def convert(
    item: SinkFrame, settings: OpenSearchSink, run: str, owned: OwnerVersions | None
) -> tuple[list[Put], list[SinkFailure]]:
    """The writes for a frame's records, and failures for those that cannot become documents. `owned`: for `upsert`."""
    if owned is None:
        ids = item.record_ids()
        values = item.frame.values()
        rows, failures = _objects(values)
        heads = [_head("create", {"_id": message_id(run, ids[row], ID_BYTES_MAX)}) for row in rows]
        puts = [Put(row, head + one_line(values[row]) + b"\n") for row, head in zip(rows, heads, strict=True)]
        return puts, failures
    return _upserts(item, settings, owned)


def judged(answer: Mapping[str, Any]) -> Misfit | None:
    """The result of one write in an answer; None if the target now has this record's document, or a newer one."""
    ((operation, found),) = answer.items()
    status, error = int(found["status"]), found.get("error")
    if status < 300 or status == CONFLICT or (status == 404 and operation == "delete" and error is None):
        return None
    kind = str(error.get("type", "")) if isinstance(error, Mapping) else ""
    detail = _detail(error) if isinstance(error, Mapping) else str(error)
    if kind == _BLOCKED or kind in _ALL_RECORDS or status in (401, 403):
        return Misfit(kind, detail, retryable=kind == _BLOCKED, everything=True)
    if status in _WAITING:
        return Misfit(BUSY, detail, retryable=True)
    return Misfit(f"OpenSearch refuses it with {kind or f'status {status}'}", detail, retryable=False)


def _upserts(item: SinkFrame, settings: OpenSearchSink, owned: OwnerVersions) -> tuple[list[Put], list[SinkFailure]]:
    values, indexes = item.frame.values(), item.indexes()
    when = settings.delete_when
    rows: Sequence[int]
    objects: list[Any] = []
    if settings.id is not None or (when is not None and when.field is not None):
        found, failures = json_objects(values)
        rows, objects = list(found), list(found.values())
    else:
        rows, failures = _objects(values)
    if settings.id is not None:
        ids = members_of(objects, settings.id.split("."))
    else:
        keys = item.frame.keys()
        ids = [_key_text(keys[row]) for row in rows]
    deletes = deletes_of(when, item, rows, objects) if when is not None else [False] * len(rows)
    puts = []
    for row, name, is_deleted in zip(rows, ids, deletes, strict=True):
        if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
            detail = f"`{settings.id}` is not a text or a whole number" if settings.id is not None else "it has no key"
            failures.append(SinkFailure(row, NO_ID, retryable=False, detail=detail))
            continue
        if len(str(name).encode(errors="replace")) > ID_BYTES_MAX:
            detail = f"it has more than {ID_BYTES_MAX} bytes"
            failures.append(SinkFailure(row, ID_TOO_LONG, retryable=False, detail=detail))
            continue
        version = owned.version(item.sequence, indexes[row])
        # `external_gte` accepts the same version again, because that is a repetition of the same write.
        meta = {"_id": str(name), "version": version, "version_type": "external_gte"}
        if is_deleted:
            puts.append(Put(row, _head("delete", meta), str(name)))
        else:
            puts.append(Put(row, _head("index", meta) + one_line(values[row]) + b"\n", str(name)))
    return puts, sorted(failures, key=lambda failure: failure.index)


def _head(operation: str, meta: Mapping[str, Any]) -> bytes:
    return json.dumps({operation: meta}, separators=(",", ":")).encode() + b"\n"


def _key_text(keys: Sequence[bytes]) -> str | None:
    if not keys:
        return None
    return keys[0].decode(errors="replace") if len(keys) == 1 else keys_text(keys)


def _objects(values: Sequence[bytes]) -> tuple[Sequence[int], list[SinkFailure]]:
    """Which of the values are JSON objects, and failures for the others."""
    if all_json(values) and all(value.lstrip(_BLANK).startswith(b"{") for value in values):
        return range(len(values)), []
    found, failures = json_objects(values)
    return list(found), failures


def _detail(error: Mapping[str, Any]) -> str:
    cause = error.get("caused_by")
    said = str(error.get("reason", ""))
    if isinstance(cause, Mapping) and cause.get("reason"):
        said += f" ({cause['reason']})"
    return said[:1000]
