"""The base of lanes that continue from a position of their own kind, and the form of these positions.

Positions of the built-in sources are small JSON objects, readable in tools. Each one contains its kind, its version and
the number of partitions. Partitions decide what each lane owns, so a position does not apply to another number of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from millstream import codes
from millstream.errors import DamageError, UserError
from millstream.json_parser import parse_json
from millstream.record import LaneId
from millstream_reader.connector import SourceOwner

_VERSION = 1


class PositionedLane:
    """The part of `SourceLane` that such lanes have in common, unless they say otherwise: their source returns the same
    records again from a position, and nothing outside needs to know what was committed."""

    kind: str
    """The kind of their positions."""
    replayable: bool = True
    _draining = False

    def __init__(self, owner: SourceOwner) -> None:
        self._owner = owner
        self._where = owner.where

    @property
    def noun(self) -> str:
        """What they are, for messages."""
        return f"a {self.kind} source"

    async def committed(self, position: bytes) -> None:
        """Nothing outside needs an acknowledgement."""

    def pending(self) -> int | None:
        """How many records wait is not known before they are read."""
        return None

    async def drain(self) -> None:
        self._draining = True

    def _owns(self, name: str, number: int = 0) -> bool:
        """Whether this lane reads the partition of that number of what has this name."""
        checksum = crc32(name.encode("utf-8", "surrogateescape"))
        return (checksum + number) % self._owner.partitions == self._owner.lane.partition

    def _unpacked(self, position: bytes) -> dict[str, Any] | None:
        """The body of a position; None for the empty one. Errors: those of `unpack_position`."""
        return unpack_position(position, self.kind, self._owner.partitions, self._owner.lane)

    def _packed(self, body: dict[str, Any]) -> bytes:
        return pack_position(self.kind, self._owner.partitions, body)

    @contextmanager
    def _restoring(self) -> Iterator[None]:
        """Converts errors of a body that is not one of this kind of lane to `DamageError`."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise unreadable_position(self._where, self._owner.position, self.noun) from error

    def _now_s(self) -> float:
        return self._owner.clock.monotonic_s()


def number_in(body: Mapping[str, Any], name: str) -> int:
    """A whole number in the body of a position. Raises `TypeError` if it is something else, `KeyError` without it."""
    number = body[name]
    if not isinstance(number, int):
        raise TypeError(body)
    return number


def pack_position(kind: str, partitions: int, body: dict[str, Any]) -> bytes:
    """The bytes of a position: `body` and the common members."""
    whole = {"source": kind, "version": _VERSION, "partitions": partitions, **body}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")


def unpack_position(position: bytes, kind: str, partitions: int, lane: LaneId) -> dict[str, Any] | None:
    """The body of a position; None for the empty position, the first start.

    Errors: `UserError` if the spec has changed so that the position does not apply, `DamageError` if the bytes are not
    a position.
    """
    if not position:
        return None
    try:
        body = parse_json(position.decode("utf-8", "surrogateescape"))
        found_kind, version, found_partitions = (
            body.pop("source"),
            body.pop("version"),
            body.pop("partitions"),
        )
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise unreadable_position(f"lane {lane}", position, "a source") from error
    start_over = "change it back, or start over with --fresh"
    if found_kind != kind:
        raise UserError(
            codes.SOURCE_CHANGED,
            f"lane {lane}: the source is now `{kind}`, and was `{found_kind}` in earlier runs; {start_over}",
        )
    if version != _VERSION:
        raise UserError(
            codes.OTHER_VERSION,
            f"lane {lane}: the stored position has version {version}; this release reads version {_VERSION}. "
            "Run the release that wrote it, or start over with --fresh",
        )
    if found_partitions != partitions:
        raise UserError(
            codes.SOURCE_CHANGED,
            f"lane {lane}: the vertex now has {partitions} partitions, and had {found_partitions} in earlier runs; "
            f"their number decides what each lane reads, so {start_over}",
        )
    return dict(body)


def unreadable_position(where: str, position: bytes, owner: str) -> DamageError:
    """The error for a stored position that does not belong to `owner`, the kind of source that read it."""
    return DamageError(
        codes.POSITION_UNREADABLE, f"{where}: the stored position {position[:80]!r} does not belong to {owner}"
    )
