"""Encodes a commit as messages of a stream, in the order in which they are written. Pure.

Above it: ledgers that are streams of messages, in JetStream or in memory. Below it: the names of subjects.

    <lane>.d.<edge>.<partition>   frames, in order
    <lane>.i.<n>                  ids of records, with a time to live
    <lane>.p                      the mark: last, replacing the previous one

The server stages every batch in separate files, which takes several times as long as a plain message. So a commit of
one frame, or of one pack of frames, is one message, with the mark in a header. Either way the last message of a lane
holds its mark, and the last message of a commit is guarded by the sequence of the previous mark.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from millstream import codes, limits
from millstream.errors import REPAIR, DamageError, MillstreamError, UserError
from millstream.json_parser import parse_json
from millstream.ledger import witness
from millstream.ledger.protocol import Commit
from millstream.ledger.sharing import SEPARATE, Sharing
from millstream.ledger.subjects import frame_subject, ids_subject, is_mark_subject, lane_filter, mark_subject
from millstream.record import ID_DIGEST_BYTES, BufferId, id_digest
from millstream.wire.ledger.v1 import mark_pb2

_ROLLUP = "Nats-Rollup"
_GUARD = "Nats-Expected-Last-Subject-Sequence"
GUARD_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
_TTL = "Nats-TTL"
MARK = "Millstream-Mark"
"""Header of a frame that is a whole commit. Its value is the mark in base64."""
_DIGESTS = b"\x01"
"""The first byte of a message that contains digests of ids."""
_IDS_BYTES = limits.FRAME_BYTES_MAX // ID_DIGEST_BYTES * ID_DIGEST_BYTES
_MARK_HEADER_MAX = 8 * limits.KIB
"""A mark that is longer than this in base64 is sent as a separate message."""

ENVELOPE_BYTES = 16 * limits.KIB
"""Space in a message that is reserved for its headers and subject."""

# The largest record, alone in a frame, fits into a message.
assert limits.RECORD_BYTES_MAX + 2 * ENVELOPE_BYTES < limits.MESSAGE_BYTES_MAX


class BatchMessage(NamedTuple):
    subject: str
    data: bytes
    headers: dict[str, str]


def commit_messages(stream: str, commit: Commit, sharing: Sharing = SEPARATE) -> list[BatchMessage]:
    """The messages of a commit. Raises `UserError` or `MillstreamError` if they do not fit into one batch."""
    messages = [
        BatchMessage(
            frame_subject(stream, commit.lane, sharing.stored(buffer)),
            data,
            {witness.NAME: witness.name_of(commit.lane.key, number, commit.mark.commit_id)} if number else {},
        )
        for (buffer, data), number in zip(commit.frames, frame_numbers(commit), strict=True)
    ]
    if commit.ids:
        subject = ids_subject(stream, commit.lane, commit.after)
        # The server accepts whole seconds, at least one; fractions are rounded up.
        ttl = {_TTL: f"{max(1, int(-(-commit.ids_ttl_s // 1)))}s"}
        messages += [BatchMessage(subject, data, ttl) for data in encode_ids(commit.ids)]
    guard = {_GUARD: str(commit.after), GUARD_SUBJECT: lane_filter(stream, commit.lane)}
    mark = commit.mark.SerializeToString()
    encoded = base64.b64encode(mark).decode()
    if len(messages) == len(commit.frames) == 1 and len(encoded) <= _MARK_HEADER_MAX:
        messages[0].headers.update({MARK: encoded, **guard})
    else:
        messages.append(BatchMessage(mark_subject(stream, commit.lane), mark, {_ROLLUP: "sub", **guard}))
    _check(commit, [len(message.data) for message in messages])
    return messages


def check_commit(commit: Commit, sizes: Sequence[int]) -> None:
    """Raises `UserError` or `MillstreamError` for a commit that no ledger accepts. `sizes`: the sizes in bytes of its
    frames and of its messages of ids."""
    _check(commit, [*sizes, commit.mark.ByteSize()])


def _check(commit: Commit, sizes: Sequence[int]) -> None:
    if len(sizes) > limits.COMMIT_MESSAGES_MAX:
        raise MillstreamError(
            codes.BROKER_ANSWER,
            f"a commit of lane {commit.lane} has {len(sizes)} messages; the limit for one batch is "
            f"{limits.COMMIT_MESSAGES_MAX}",
        )
    for size in sizes:
        if size > limits.MESSAGE_BYTES_MAX - ENVELOPE_BYTES:
            raise UserError(
                codes.RECORD_TOO_LARGE,
                f"lane {commit.lane} commits a frame of {size} bytes, but a message of the broker has at most "
                f"{limits.MESSAGE_BYTES_MAX} bytes, of which {ENVELOPE_BYTES} are for headers. Make the record "
                "smaller",
            )


def frame_numbers(commit: Commit) -> list[int]:
    """Numbers of the commit's frames in their buffers, from the totals in its mark; 0 if the mark has no total.

    A server silently drops messages from a damaged file. A reader detects that by the missing number.
    """
    totals = {BufferId(written.edge, written.partition): written.frames for written in commit.mark.written}
    for buffer, _ in commit.frames:
        if buffer in totals:
            totals[buffer] -= 1
    numbers: list[int] = []
    for buffer, _ in commit.frames:
        if buffer in totals:
            totals[buffer] += 1
        numbers.append(totals.get(buffer, 0))
    return numbers


def holds_mark(subject: str, headers: Mapping[str, str]) -> bool:
    """Whether a message holds a mark. The last message of a lane does, except in the middle of a batch."""
    return is_mark_subject(subject) or MARK in headers


def stored_mark(subject: str, data: bytes, headers: Mapping[str, str]) -> mark_pb2.Mark | None:
    """The mark in the last message of a lane; None if the message has none, as in the middle of a batch.

    Raises `ValueError` if the mark cannot be read.
    """
    if not holds_mark(subject, headers):
        return None
    try:
        return mark_pb2.Mark.FromString(
            data if is_mark_subject(subject) else base64.b64decode(headers[MARK], validate=True)
        )
    except DecodeError as error:
        raise ValueError(f"it is not a mark: {error}") from error


def encode_ids(digests: bytes) -> Iterator[bytes]:
    """Digests as the payloads of messages, each well below the maximum size of a message."""
    for start in range(0, len(digests), _IDS_BYTES):
        yield _DIGESTS + digests[start : start + _IDS_BYTES]


def decode_ids(data: bytes) -> bytes:
    """Inverse of `encode_ids`, for one message. Raises `ValueError` if it cannot be read. Ledgers of earlier versions
    hold ids in JSON."""
    if data.startswith(_DIGESTS):
        digests = data[len(_DIGESTS) :]
        if len(digests) % ID_DIGEST_BYTES:
            raise ValueError(f"{len(digests)} bytes are not a row of digests of {ID_DIGEST_BYTES} bytes")
        return digests
    record_ids = parse_json(data)
    if not isinstance(record_ids, list) or not all(isinstance(record_id, str) for record_id in record_ids):
        raise ValueError("it is not a list of ids")
    return b"".join(id_digest(record_id.encode()) for record_id in record_ids)


def remembered(data: bytes, ledger: str, where: str) -> bytes:
    """As `decode_ids`, for what is stored in a ledger. Raises `DamageError`. `where`: its place there."""
    try:
        return decode_ids(data)
    except ValueError as error:
        raise DamageError(
            codes.IDS_UNREADABLE,
            f"remembered record ids in {ledger} ({where}, {len(data)} bytes) cannot be read: {error}. Records with "
            f"these ids would be accepted again. {REPAIR}",
        ) from error


def frame_sequences(mark_sequence: int, messages: int, frames: int) -> tuple[int, ...]:
    """Sequences of the frames of a stored commit. Its messages have consecutive sequences, and its mark is last.

    If the commit is one message, that message is both the frame and the mark.
    """
    first = mark_sequence - messages + 1
    return tuple(range(first, first + frames))
