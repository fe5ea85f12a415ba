"""What every open ledger does alike, whatever stores it: it describes itself, and checks the frames that are read.

Above it: the ledgers, which store and read. Below it: their interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from millstream.ledger.protocol import Durability, GivenUp, LedgerStatistics, StoredFrame, Witness
from millstream.ledger.sharing import Sharing
from millstream.ledger.witness import ObserverCheck, ReadCheck
from millstream.record import BufferId


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


class OpenLedger(ABC):
    """The part of a `Ledger` that does not depend on the technology."""

    def __init__(
        self, vertex: str, name: str, identity: str, durability: Durability, sharing: Sharing, holds: Holds
    ) -> None:
        """`name`: what messages call the ledger. `identity`: differs for a later ledger of that name."""
        self.vertex = vertex
        self.ledger_id = f"{name} {identity}"
        self.durability = durability
        self.sharing = sharing
        self.packs = holds.packs
        self.compresses = holds.compressed
        self.holds_arrow = holds.arrow
        self._name = name
        self._statistics = LedgerStatistics()

    def statistics(self) -> LedgerStatistics:
        return self._statistics

    def read(
        self,
        buffer: BufferId,
        after: int,
        witnesses: Iterable[Witness] | None = None,
        given_up: Iterable[GivenUp] = (),
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        check = ReadCheck(self._name, self._filter(buffer), after, witnesses, given_up)
        return self._frames(self.sharing.stored(buffer), after, check)

    def watch(self, buffer: BufferId, after: int) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        return self._frames(self.sharing.stored(buffer), after, ObserverCheck())

    def _filter(self, buffer: BufferId) -> str:
        """The `_subject` under which the frames of a buffer are stored."""
        return self._subject(self.sharing.stored(buffer))

    @abstractmethod
    def _subject(self, stored: BufferId) -> str:
        """The name of a buffer in which frames are stored, in the ledger and in messages."""

    @abstractmethod
    def _frames(
        self, stored: BufferId, after: int, check: ReadCheck | ObserverCheck
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        """The frames in such a buffer after a sequence, forever. `check` approves each one before it is returned."""
