"""The position that a user's target stores for a lane, as text. Pure.

    {"millstream":1,"run":"5f...","epoch":7,"owner":"9c...","at":[120,0],"frame":"a1...","refused":[]}

`refused` has an entry for each record that the function refused between the lane's mark and the position: the position
after the record, what happens to the record, the reason and the detail.

Above it: the lane. Below it: nothing. The text may be anything when it is read back: the user's program has stored it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from millstream import codes
from millstream.json_parser import parse_json
from millstream.record import Position
from millstream_connectors.shared.kept import TargetPosition
from millstream_writer.sink import SinkFailure

_FORM = 1
_DETAIL_CHARACTERS = 300
"""Maximum length of a refused record's detail. The log of the process that refused it first has all of it."""


class StoredPosition(NamedTuple):
    """The position that the target stores for a lane."""

    kept: TargetPosition
    refused: Mapping[Position, SinkFailure]
    """The refused records, by the position after each. Their `index` has no meaning here."""


def text_of(stored: StoredPosition) -> bytes:
    """The text that the function stores."""
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
    """The position in a text that the function returned; None if it is empty. Raises `ValueError` if it does not
    come from `text_of`."""
    if not data:
        return None
    try:
        members = parse_json(data)
    except ValueError as error:
        raise ValueError(f"{len(data)} bytes that are not JSON") from error
    if not isinstance(members, dict) or members.get("millstream") != _FORM:
        raise ValueError(f'JSON without "millstream": {_FORM}')
    try:
        run, owner, frame = (_text(members[name]) for name in ("run", "owner", "frame"))
        kept = TargetPosition(run, _number(members["epoch"]), owner, _position(members["at"]), frame)
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
