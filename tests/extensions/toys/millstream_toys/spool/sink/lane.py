"""A lane of the `spool` sink: files, and then the file of the lane, which says how far they count.

lock ─► is the epoch ours? ─► files 8, 9, 10 ─► lane file: position, last number 10 ─► unlock
                                   x a crash leaves files that do not count: the next owner writes them again, with
                                     the same records
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from millstream import codes
from millstream.errors import DamageError, FencedError
from millstream.json_parser import parse_json
from millstream.record import Position
from millstream_toys.spool.client import locked, sync, write_file
from millstream_toys.spool.settings import SpoolSink
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import Guarantee, SinkFrame, SinkLane, WriteResult, exact_end, exact_position

_LANE_FILE = "lane.json"


@dataclass(frozen=True, slots=True)
class _State:
    """The contents of the lane's file."""

    ledger: str
    epoch: int
    sequence: int
    record: int
    """With `sequence`: the position."""
    files: int
    """Number of the last file that counts."""

    @property
    def position(self) -> Position:
        return Position(self.sequence, self.record)


class _SpoolLane:
    def __init__(self, directory: Path, owner: SinkOwner) -> None:
        self._directory = directory
        self._owner = owner
        self._durable = owner.start

    def take_over(self) -> None:
        """Fence owners with a lower epoch, and find out how far they came. Blocks."""
        owner = self._owner
        if not owner.must_be_known:
            self._directory.mkdir(parents=True, exist_ok=True)
        with locked(self._directory):
            state = self._stored()
            if state is None and owner.must_be_known:
                what = f"{owner.where}: {self._directory} no longer knows the lane"
                raise DamageError(codes.TARGET_POSITION_LOST, what)
            state = state or _State(owner.ledger_id, 0, *owner.start, files=0)
            if state.ledger != owner.ledger_id:
                what = f"{owner.where}: {self._directory} has files of another run; name another directory"
                raise DamageError(codes.SINK_AHEAD, what)
            if state.epoch >= owner.epoch:
                what = f"{owner.where}: {self._directory} has an owner with epoch {state.epoch}"
                raise FencedError(codes.OUTPUT_TAKEN_OVER, what)
            self._store(replace(state, epoch=owner.epoch))
        self._durable = max(owner.start, state.position)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    @property
    def durable(self) -> Position | None:
        return self._durable

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        values = [
            value
            for item in frames
            for index, value in zip(item.indexes(), item.frame.values(), strict=True)
            if exact_position(item, index + 1) > self._durable
        ]
        reached = max(self._durable, exact_end(frames, end))
        await asyncio.to_thread(self._write, values, reached)
        self._durable = reached
        return WriteResult()

    def _write(self, values: Sequence[bytes], reached: Position) -> None:
        with locked(self._directory):
            state = self._stored()
            if state is None or state.epoch != self._owner.epoch:
                what = f"{self._owner.where}: another owner writes to {self._directory}"
                raise FencedError(codes.OUTPUT_TAKEN_OVER, what)
            for number, value in enumerate(values, state.files + 1):
                write_file(self._directory, str(number), value)
            # The names come first: what counts must exist.
            sync(self._directory)
            files = state.files + len(values)
            self._store(replace(state, sequence=reached.sequence, record=reached.record_index, files=files))

    def _stored(self) -> _State | None:
        try:
            return _State(**parse_json((self._directory / _LANE_FILE).read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            what = f"{self._owner.where}: {self._directory / _LANE_FILE} cannot be read: {error}"
            raise DamageError(codes.TARGET_POSITION_LOST, what) from error

    def _store(self, state: _State) -> None:
        write_file(self._directory, _LANE_FILE, json.dumps(asdict(state)).encode())
        sync(self._directory)

    async def flush(self) -> None:
        """Every write is durable when it returns."""

    async def tick(self) -> None:
        """Nothing waits for a time."""


@asynccontextmanager
async def open_spool(settings: SpoolSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's directory, with every former owner of the lane fenced."""
    lane = _SpoolLane(owner.base_dir / settings.path / owner.name, owner)
    await asyncio.to_thread(lane.take_over)
    await owner.note_target()
    yield lane
