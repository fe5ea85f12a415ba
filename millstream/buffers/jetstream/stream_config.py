"""The settings of a ledger's stream. Pure.

Above it: `ledger.py`. Below it: the limits of a ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from millstream.ledger.opened import Holds
from millstream.ledger.protocol import LedgerLimits
from millstream.ledger.sharing import Sharing

OWNER_PIPELINE = "millstream.pipeline"
OWNER_VERTEX = "millstream.vertex"
"""Keys in a stream's metadata. They show the owner, because streams of two pipelines may have the same name."""
LAYOUT = "millstream.layout"
LAYOUTS = ("3", "4", "5", "6", "7", "8")
LAYOUT_NOW = LAYOUTS[-1]
"""Key and values in a stream's metadata: the layout says which subjects the stream has, where marks are, and how frames
are named. A stream without this key has the first layout, in which marks are always separate messages. In the second
layout, frames do not name their commit. In the fourth, edges share copies of their frames, which earlier versions would
neither write nor find. In the fifth, edges may do that, and a stored frame may be a pack of several, which earlier
versions cannot read. In the sixth, it may be compressed, too. In the seventh, a batch may refer to frames that are
stored apart from it. In the eighth, a frame may have Arrow columns in place of values. A stream keeps the layout with
which it was created."""
_SHARED = "millstream.shared"
"""Key in a stream's metadata. The value is from `Sharing.encode`."""


def stream_config(pipeline: str, vertex: str, stream: str, limits: LedgerLimits) -> dict[str, Any]:
    """The required configuration of the stream of `vertex`. How many copies it has in a cluster is the operator's
    decision: the server's default is one, and a number that was set at the server stays."""
    return {
        "name": stream,
        "subjects": [f"{stream}.>"],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs_per_subject": limits.frames_per_buffer_max,
        "max_bytes": limits.bytes_max,
        "allow_atomic": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "metadata": {
            OWNER_PIPELINE: pipeline,
            OWNER_VERTEX: vertex,
            LAYOUT: LAYOUT_NOW,
            **({_SHARED: limits.sharing.encode()} if limits.sharing else {}),
        },
    }


def sharing_of(metadata: Mapping[str, str]) -> Sharing:
    """The sharing in the metadata of a ledger's stream."""
    return Sharing.decode(metadata.get(_SHARED))


def holds_of(metadata: Mapping[str, str]) -> Holds:
    """What the ledger of a stream with this metadata may hold."""
    layout = int(metadata[LAYOUT])
    return Holds(packs=layout >= 5, compressed=layout >= 6, references=layout >= 7, arrow=layout >= 8)


def after_leaving(metadata: Mapping[str, str], edges: Collection[str]) -> dict[str, str]:
    """The metadata of a ledger's stream after these edges have left their shared copies."""
    return {**metadata, _SHARED: sharing_of(metadata).without(edges).encode()}
