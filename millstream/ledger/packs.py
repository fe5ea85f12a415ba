"""Packs: several frames that are stored as one. Pure.

The frames of a commit to one buffer are one message, because a commit of one message is much cheaper for the broker
than an atomic batch. A pack counts as one stored frame: it has one sequence, one number and one name, and the index of
a record counts from the first record of the pack.

Above it: the committer, which makes packs, and code that decodes stored frames. Below it: the codec of frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import DamageError
from millstream.frame import Frame
from millstream.ledger.compression import decompressed
from millstream.wire.ledger.v1 import pack_pb2
from millstream_udf.fields import field, repeated

_NUMBER = pack_pb2.FramePack.FRAMES_FIELD_NUMBER
_FIRST_BYTE = field(_NUMBER, b"x")[0][:1]
"""The first byte of a pack, which is not the first byte of a frame."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Frames to store as one: at least two."""

    frames: Sequence[Frame]

    @property
    def records(self) -> int:
        return sum(frame.records for frame in self.frames)

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        return sum(frame.size for frame in self.frames)

    def encode(self) -> bytes:
        """The bytes to store."""
        parts: list[bytes] = []
        for frame in self.frames:
            parts += field(_NUMBER, *frame.parts())
        return b"".join(parts)


def is_pack(data: bytes) -> bool:
    """Whether these bytes are a pack, not compressed."""
    return data[:1] == _FIRST_BYTE


def frames_in(data: bytes) -> list[Frame]:
    """The frames that were stored: one, or those of a pack. Raises `DamageError` for bytes that are neither, and
    `UserError` if a package is missing that decompresses them."""
    if not data:
        raise DamageError(codes.FRAME_UNREADABLE, "its data no longer exists")
    data = decompressed(data)
    if not is_pack(data):
        return [Frame.decode(data)]
    if parts := repeated(data, _NUMBER):
        return [Frame.decode(part) for part in parts]
    try:
        pack = pack_pb2.FramePack.FromString(data)
    except DecodeError as error:
        raise DamageError(codes.FRAME_UNREADABLE, f"{len(data)} bytes are not a pack of frames: {error}") from error
    if not pack.frames:
        raise DamageError(codes.FRAME_UNREADABLE, f"{len(data)} bytes are a pack without frames")
    return [Frame.decode(one) for one in pack.frames]


def shares_of(frames: Sequence[Frame], stored: int) -> list[int]:
    """How the bytes of a stored frame are divided among the frames in it: each has those of its columns, and the last
    one what is left; if they were compressed, each has its part of them."""
    sizes = [frame.size for frame in frames]
    if (total := sum(sizes)) <= stored:
        return [*sizes[:-1], stored - sum(sizes[:-1])]
    ends = [stored * end // total for end in accumulate(sizes)]
    return [end - start for start, end in pairwise((0, *ends))]


def finished_bytes(frames: Sequence[Frame], stored: int, records: int) -> int:
    """The shares of those frames in a stored frame that are finished when this many of its records are."""
    ends = accumulate(frame.records for frame in frames)
    return sum(share for share, end in zip(shares_of(frames, stored), ends, strict=True) if end <= records)
