"""Which edges share one stored copy of their frames. Pure.

    edges in-map, in-count, in-sink     all three carry the same frames
    ledger of "in"                      …d._in-1.<partition>, written once and read by three

Sharing is decided once, when a ledger is created, and stored in that ledger. In a ledger that was created before this
feature existed, each edge has its own copy, and so does an edge that was added later. An edge can leave a shared copy,
but cannot join it again.

Above it: the ledgers, and everything that writes or trims buffers. Below it: nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millstream.json_parser import parse_json
from millstream.record import BufferId


@dataclass(frozen=True, slots=True)
class Sharing:
    """The shared copies of one ledger."""

    stores: Mapping[str, str] = field(default_factory=dict)
    """For each edge that shares a copy: the name under which its frames are stored, instead of its own name."""

    @classmethod
    def of(cls, copies: Mapping[str, Collection[str]]) -> Sharing:
        """`copies`: for each copy, its name and its edges. The name of a copy differs from the names of all edges."""
        return cls({edge: copy for copy, edges in copies.items() for edge in edges})

    def __bool__(self) -> bool:
        return bool(self.stores)

    def stored(self, buffer: BufferId) -> BufferId:
        """The buffer in which the frames of `buffer` are stored."""
        store = self.stores.get(buffer.edge)
        return buffer if store is None else BufferId(store, buffer.partition)

    def group(self, edge: str) -> tuple[str, ...]:
        """The edges whose frames are stored together with those of `edge`, including `edge`."""
        store = self.stores.get(edge)
        return (edge,) if store is None else tuple(name for name, other in self.stores.items() if other == store)

    def readers(self, stored: BufferId) -> tuple[BufferId, ...]:
        """The buffers whose frames are stored in this one: the reverse of `stored`."""
        return tuple(BufferId(edge, stored.partition) for edge, name in self.stores.items() if name == stored.edge) or (
            stored,
        )

    def without(self, edges: Collection[str]) -> Sharing:
        """What remains after these edges have left."""
        return Sharing({edge: store for edge, store in self.stores.items() if edge not in edges})

    def encode(self) -> str:
        """The text that the ledger stores."""
        return json.dumps(self.stores, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes | None) -> Sharing:
        """The inverse of `encode`. An empty text or None means that no edges share a copy."""
        return cls(parse_json(text) if text else {})


SEPARATE = Sharing()
"""Each edge has its own copy."""
