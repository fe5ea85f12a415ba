"""Names of keys. Pure. Only the scripts and the deletion of keys also depend on their structure.

millstream:<pipeline>:<vertex>:l            hash: id, layout, shared copies, limits, last sequence and bytes
millstream:<pipeline>:<vertex>:l:p:<lane>   hash: the lane's mark, its sequence and the id of its commit
millstream:<pipeline>:<vertex>:l:i:<lane>   stream: digests of record ids
millstream:<pipeline>:<vertex>:l:n          hash: frames of each lane in each buffer
millstream:<pipeline>:<vertex>:l:d:<buffer> stream: frames, `<sequence>-0`
millstream:<pipeline>:<vertex>:l:x:<buffer> stream: who wrote each frame, and its size
millstream:<pipeline>:<vertex>:o            hash: the newest OT entry of each lane; a channel of that name
millstream:<pipeline>:<vertex>:o:r          hash: how often each was put
"""

from __future__ import annotations

from millstream.record import BufferId, LaneId

_ROOT = "millstream"


def vertex_prefix(pipeline: str, vertex: str) -> str:
    """The beginning of all keys of a vertex. With `*` as the vertex it is a pattern: names contain no characters with a
    meaning in patterns."""
    return f"{_ROOT}:{pipeline}:{vertex}:"


def ledger_key(pipeline: str, vertex: str) -> str:
    """The key of the ledger's own hash. All other keys of the ledger begin with it."""
    return f"{vertex_prefix(pipeline, vertex)}l"


def mark_key(ledger: str, lane: LaneId) -> str:
    return f"{ledger}:p:{lane.key}"


def ids_key(ledger: str, lane: LaneId) -> str:
    return f"{ledger}:i:{lane.key}"


def counts_key(ledger: str) -> str:
    return f"{ledger}:n"


def frames_key(ledger: str, buffer: BufferId) -> str:
    return f"{ledger}:d:{buffer_name(buffer)}"


def index_key(ledger: str, buffer: BufferId) -> str:
    return f"{ledger}:x:{buffer_name(buffer)}"


def buffer_name(buffer: BufferId) -> str:
    return f"{buffer.edge}.{buffer.partition}"


def entries_key(pipeline: str, vertex: str) -> str:
    """OT entries, and the channel on which they are published."""
    return f"{vertex_prefix(pipeline, vertex)}o"


def revisions_key(pipeline: str, vertex: str) -> str:
    return f"{entries_key(pipeline, vertex)}:r"
