"""What every open ledger says about itself, whatever stores it.

Above it: the ledgers. Below it: their interface.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.ledger.protocol import Durability, LedgerStatistics
from millstream.ledger.sharing import Sharing


@dataclass(frozen=True, slots=True)
class Holds:
    """What a ledger may hold, by its layout."""

    packs: bool = True
    """Stored frames that are a pack of several."""
    compressed: bool = True
    """Compressed frames."""
    arrow: bool = True
    """Frames with Arrow columns in place of values."""
    references: bool = False
    """Batches that refer to frames which are stored apart from them."""


class OpenLedger:
    """The part of a `Ledger` that does not depend on the technology."""

    def __init__(self, vertex: str, ledger_id: str, durability: Durability, sharing: Sharing, holds: Holds) -> None:
        self.vertex = vertex
        self.ledger_id = ledger_id
        self.durability = durability
        self.sharing = sharing
        self.packs = holds.packs
        self.compresses = holds.compressed
        self.holds_arrow = holds.arrow
        self._statistics = LedgerStatistics()

    def statistics(self) -> LedgerStatistics:
        return self._statistics
