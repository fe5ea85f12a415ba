"""Names of streams and subjects. Pure; the only place that knows how they are built (design, section 4)."""

from __future__ import annotations

import re

from millstream.errors import UserError
from millstream.record import BufferId, LaneId

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")

ID_SUBJECTS = 256
"""The ids of a lane are spread over this many subjects, so that their number is bounded by their age alone."""


def stream_name(pipeline: str, vertex: str) -> str:
    return f"{_token(pipeline)}-{_token(vertex)}"


def buffer_subject(stream: str, buffer: BufferId) -> str:
    return f"{stream}.d.{_token(buffer.edge)}.{buffer.partition}"


def mark_subject(stream: str, lane: LaneId) -> str:
    return f"{stream}.p.{_token(lane.input)}.{lane.partition}"


def ids_subject(stream: str, lane: LaneId, after: int) -> str:
    """Where the ids of the commit after `after` go."""
    return f"{stream}.i.{_token(lane.input)}.{lane.partition}.{after % ID_SUBJECTS}"


def ids_filter(stream: str, lane: LaneId) -> str:
    """Matches every subject that holds ids of the lane."""
    return f"{stream}.i.{_token(lane.input)}.{lane.partition}.*"


def _token(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise UserError(f"{name!r} cannot be part of a broker's subject: use letters, digits, '-' and '_'")
    return name
