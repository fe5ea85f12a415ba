"""An answer that comes in pieces: what they are together, and those that wait for their receiver.

    stream ─► Pieces of a call (a few, then the stream waits) ─► the caller, one by one ─► PieceByPiece checks the whole

Above it: the lanes and the streams of calls. Below it: answers. It knows no process and no protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from millstream.limits import ANSWER_RECORDS_MAX, GRPC_MESSAGE_BYTES_MAX
from millstream.udf.answers import MapAnswer
from millstream_udf import columns

PIECES_WAITING_MAX = 4
"""Pieces of a call that its caller has not taken, before nothing more is read from the function."""

_Answer = TypeVar("_Answer")


class PiecesLostError(Exception):
    """The stream has ended in the middle of an answer. The pieces that came do not count; the call may be repeated."""


class PieceMisfitError(ValueError):
    """A part of an answer does not fit its call, and more of the answer follows."""


class Pieces(Generic[_Answer]):
    """The pieces of one answer, between the stream and the caller."""

    def __init__(self) -> None:
        self._waiting: deque[_Answer] = deque()
        self._changed = asyncio.Event()
        self._is_over = False
        self.began = False
        """Whether any piece has come."""

    async def put(self, piece: _Answer) -> None:
        """Add a piece. Waits while the caller does not keep up."""
        self.began = True
        while len(self._waiting) >= PIECES_WAITING_MAX and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        if not self._is_over:
            self._waiting.append(piece)
            self._changed.set()

    async def next(self) -> _Answer | None:
        """The next piece; None if none follows."""
        while not self._waiting:
            if self._is_over:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._changed.set()
        return self._waiting.popleft()

    def end(self) -> None:
        """No piece follows."""
        self._is_over = True
        self._changed.set()

    def abandon(self) -> None:
        """The caller takes no more."""
        self._waiting.clear()
        self.end()


class PieceByPiece:
    """Checks the pieces of an answer, of which each alone fits its call. `add` raises `ValueError` for one that does
    not fit those before it."""

    def __init__(self, outputs_max: int = ANSWER_RECORDS_MAX) -> None:
        self._outputs_max = outputs_max
        self._records = 0
        self._size = 0
        self._last_parent = 0
        self._ended: set[int] = set()
        """Inputs with an outcome."""

    def add(self, piece: MapAnswer) -> None:
        """Check the next piece, or the last one."""
        self._records += piece.records
        self._size += piece.size
        if self._records > self._outputs_max:
            raise ValueError(
                f"it has more than {self._outputs_max:,} outputs; at most that many are allowed per call (`outputsMax`)"
            )
        if self._size > GRPC_MESSAGE_BYTES_MAX:
            raise ValueError(f"its outputs have more than {GRPC_MESSAGE_BYTES_MAX:,} bytes")
        if piece.records and not piece.parents:
            raise ValueError("a part of it has outputs, but no column parents with the input of each")
        parents = columns.unpack_offsets(piece.parents)
        if parents and parents[0] < self._last_parent:
            raise ValueError(f"input {parents[0]} has outputs after those of input {self._last_parent}")
        if ended := self._ended.intersection(parents):
            raise ValueError(f"input {min(ended)} has outputs after its outcome")
        for outcome in piece.outcomes:
            if outcome.index in self._ended:
                raise ValueError(f"input {outcome.index} has two outcomes")
            self._ended.add(outcome.index)
        self._last_parent = parents[-1] if parents else self._last_parent
