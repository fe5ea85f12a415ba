"""The position that a user's target stores for a lane, as text. Pure.

    {"millstream":1,"run":"5f...","epoch":7,"owner":"9c...","at":[120,0],"frame":"a1...","refused":[]}

`refused` has, for each record that the function refused between the lane's mark and the position: where the lane is
after it, what becomes of it, the reason and the detail.

Above it: the lane. Below it: nothing. What comes back may be anything: the user's program has stored it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from millstream import codes
from millstream.record import Position
from millstream_writer.sink import SinkFailure
from millstream_writer.sinks.kept import Kept

_FORM = 1
_DETAIL_CHARACTERS = 300
"""Of a refused record; the whole is in the log of the process that met it first."""


class StoredPosition(NamedTuple):
    """What the target has of a lane."""

    kept: Kept
    refused: Mapping[Position, SinkFailure]
    """By the position after the record; `index` has no meaning here."""


def text_of(stored: StoredPosition) -> bytes:
    """For the function to store."""
    kept = stored.kept
    refused = [
        [*at, _fate(failure), failure.reason, failure.detail[:_DETAIL_CHARACTERS]]
        for at, failure in stored.refused.items()
    ]
    members = {
        "millstream": _FORM,
        "run": kept.run,
        "epoch": kept.epoch,
        "owner": kept.owner,
        "at": list(kept.position),
        "frame": kept.frame,
        "refused": refused,
    }
    return json.dumps(members, separators=(",", ":"), ensure_ascii=True).encode()


def position_of(data: bytes) -> StoredPosition | None:
    """What the function returned; None if that is nothing. Raises `ValueError` if it is not what `text_of` gave."""
    if not data:
        return None
    try:
        members = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{len(data)} bytes that are not JSON") from error
    if not isinstance(members, dict) or members.get("millstream") != _FORM:
        raise ValueError(f'JSON without "millstream": {_FORM}')
    try:
        run, owner, frame = (_text(members[name]) for name in ("run", "owner", "frame"))
        kept = Kept(run, _number(members["epoch"]), owner, _position(members["at"]), frame)
        return StoredPosition(kept, dict(map(_refused, members["refused"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"JSON in another form: {error!r}") from error


def _fate(failure: SinkFailure) -> str:
    if failure.drop:
        return "drop"
    if failure.fallback:
        return "fallback"
    return "misfit" if failure.code is codes.RECORD_MISFIT else "refused"


def _refused(item: Any) -> tuple[Position, SinkFailure]:
    sequence, record, fate, reason, detail = item
    if fate not in ("drop", "fallback", "misfit", "refused"):
        raise ValueError(f"a record with the fate {fate!r}")
    failure = SinkFailure(
        0,
        _text(reason),
        retryable=False,
        fallback=fate == "fallback",
        drop=fate == "drop",
        detail=_text(detail),
        code=codes.RECORD_MISFIT if fate == "misfit" else None,
    )
    return _position((sequence, record)), failure


def _position(parts: Any) -> Position:
    sequence, record = parts
    return Position(_number(sequence), _number(record))


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a number of records or frames")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text is expected")
    return value
