"""Positions of the built-in sources: small JSON objects, readable in tools. Pure.

Every position contains its kind, its version and the number of partitions. Partitions decide what each lane owns, so a
position does not apply to another number of them.
"""

from __future__ import annotations

import json
from typing import Any

from millstream import codes
from millstream.errors import DamageError, UserError
from millstream.json_parser import parse_json
from millstream.record import LaneId

_VERSION = 1


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
