"""Which edges share one stored copy of their frames. Pure.

    edges in-map, in-count, in-sink     all three carry the same frames
    ledger of "in"                      …d._in-1.<partition>, written once and read by three

A ledger decides this once, when it is created, and keeps the answer with itself: a ledger that was created earlier, or
an edge that was added later, has a copy of its own. An edge can leave, and never comes back.

Above it: the ledgers, and everything that writes or trims buffers. Below it: nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millstream.record import BufferId


@dataclass(frozen=True, slots=True)
class Sharing:
    """Of one ledger."""

    stores: Mapping[str, str] = field(default_factory=dict)
    """For each edge that shares: the name under which its frames are stored, in place of its own."""

    @classmethod
    def of(cls, copies: Mapping[str, Collection[str]]) -> Sharing:
        """Of these edges, by the name of their copy. No edge has such a name."""
        return cls({edge: copy for copy, edges in copies.items() for edge in edges})

    def __bool__(self) -> bool:
        return bool(self.stores)

    def stored(self, buffer: BufferId) -> BufferId:
        """The buffer under the name under which its frames are stored."""
        store = self.stores.get(buffer.edge)
        return buffer if store is None else BufferId(store, buffer.partition)

    def group(self, edge: str) -> tuple[str, ...]:
        """The edges whose frames are stored together with those of `edge`, itself included."""
        store = self.stores.get(edge)
        return (edge,) if store is None else tuple(name for name, other in self.stores.items() if other == store)

    def readers(self, stored: BufferId) -> tuple[BufferId, ...]:
        """The buffers whose frames are stored under this name: the reverse of `stored`."""
        shared = tuple(BufferId(edge, stored.partition) for edge, name in self.stores.items() if name == stored.edge)
        return shared or (stored,)

    def without(self, edges: Collection[str]) -> Sharing:
        """After these edges have left."""
        return Sharing({edge: store for edge, store in self.stores.items() if edge not in edges})

    def encode(self) -> str:
        """As text, to be kept with the ledger."""
        return json.dumps(self.stores, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> Sharing:
        """Inverse of `encode`; an empty text, or None, is of a ledger in which no edges share."""
        return cls(json.loads(text) if text else {})


SEPARATE = Sharing()
"""Each edge has a copy of its own."""
