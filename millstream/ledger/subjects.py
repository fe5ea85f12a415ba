"""Names of streams and subjects. Pure; no other module knows their structure."""

from __future__ import annotations

import re
from functools import lru_cache

from millstream import codes
from millstream.errors import UserError
from millstream.record import BufferId, LaneId

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_NAMES_MAX = 4096
"""Names to remember: each commit needs the same few."""

_APART = "@"
"""The token in front of the lane's name for frames that are stored apart. No input has this name, so no filter for what
a lane commits matches them."""

ID_SUBJECTS = 256
"""The ids of a lane are spread over this many subjects, so that only their age limits their number."""


def stream_name(pipeline: str, vertex: str) -> str:
    return f"{_token(pipeline)}-{_token(vertex)}"


@lru_cache(_NAMES_MAX)
def lane_filter(stream: str, lane: LaneId) -> str:
    """Matches everything that the lane writes. The last message holds the lane's mark."""
    return f"{_lane_prefix(stream, lane)}.>"


@lru_cache(_NAMES_MAX)
def frame_subject(stream: str, lane: LaneId, buffer: BufferId) -> str:
    return f"{_lane_prefix(stream, lane)}.d.{_token(buffer.edge)}.{buffer.partition}"


def buffer_filter(stream: str, buffer: BufferId) -> str:
    """Matches the frames of a buffer, whichever lane wrote them."""
    return f"{stream}.*.*.d.{_token(buffer.edge)}.{buffer.partition}"


def frames_filter(stream: str) -> str:
    """Matches the frames of all buffers."""
    return f"{stream}.*.*.d.>"


def buffer_of(subject: str) -> BufferId:
    """The buffer of a subject that holds frames, or frames that are stored apart."""
    edge, partition = subject.split(".")[-2:]
    return BufferId(edge, int(partition))


def apart_subject(frame: str) -> str:
    """The subject for a frame that is stored apart. `frame`: the subject of the message that refers to it."""
    stream, lane_input, partition, _, edge, number = frame.split(".")
    return f"{stream}.{_APART}.{lane_input}.{partition}.{edge}.{number}"


def frame_subject_of(apart: str) -> str:
    """Inverse of `apart_subject`."""
    stream, _, lane_input, partition, edge, number = apart.split(".")
    return f"{stream}.{lane_input}.{partition}.d.{edge}.{number}"


def apart_filter(stream: str, lane: LaneId | None = None) -> str:
    """Matches the frames that are stored apart: of one lane, or of all."""
    if lane is None:
        return f"{stream}.{_APART}.>"
    return f"{stream}.{_APART}.{_token(lane.input)}.{lane.partition}.>"


def lane_filter_of(subject: str) -> str:
    """The `lane_filter` of the lane that writes to `subject`."""
    stream, *rest = subject.split(".")
    lane_input, partition = rest[1:3] if rest[0] == _APART else rest[:2]
    return f"{stream}.{lane_input}.{partition}.>"


def mark_subject(stream: str, lane: LaneId) -> str:
    return f"{_lane_prefix(stream, lane)}.p"


def marks_filter(stream: str) -> str:
    """Matches the marks that are messages of their own, of all lanes."""
    return f"{stream}.*.*.p"


def is_mark_subject(subject: str) -> bool:
    # Everything else that a lane writes ends with a number.
    return subject.endswith(".p")


def ids_subject(stream: str, lane: LaneId, after: int) -> str:
    """The subject for the ids of the commit after `after`."""
    return f"{_lane_prefix(stream, lane)}.i.{after % ID_SUBJECTS}"


def ids_filter(stream: str, lane: LaneId) -> str:
    """Matches every subject that holds ids of the lane."""
    return f"{_lane_prefix(stream, lane)}.i.*"


def _lane_prefix(stream: str, lane: LaneId) -> str:
    return f"{stream}.{_token(lane.input)}.{lane.partition}"


def _token(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise UserError(
            codes.BROKER_NAME, f"{name!r} cannot be part of a broker's subject: use letters, digits, '-' and '_'"
        )
    return name
