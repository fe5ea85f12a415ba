"""Lanes of a state without a ledger: their changelog is a list, with a frame for each result, or for several."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from millstream.ledger.protocol import Witness
from millstream.udf.states import DeclaredState, StateChanges, StateClock, StateKind
from millstream_vertex.keyed.disk.image import DiskImage, open_disk_image
from millstream_vertex.keyed.disk.store import StoreIdentity
from millstream_vertex.keyed.image import Image, Position, StateImage, parts_of
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import decode_step

VALUE = DeclaredState("value", StateKind.VALUE, "bytes")
MAP = DeclaredState("map", StateKind.MAP, "bytes", "bytes", clock=StateClock.PROCESSING_TIME)
STATES = (VALUE, MAP)
IDENTITY = StoreIdentity("ledger-1", "in-v.0")

Entry = tuple[bytes, int, bytes]
"""Key, state and item."""
Model = dict[Entry, tuple[bytes, int]]
"""Value and expiry of each entry."""
Changes = Sequence[tuple[Entry, tuple[bytes, int] | None]]


def changed(model: Model, changes: Changes) -> Model:
    model = dict(model)
    for entry, value in changes:
        if value is None:
            model.pop(entry, None)
        else:
            model[entry] = value
    return model


@dataclass
class Result:
    """A result, and the state after it."""

    frame: list[bytes]
    """Empty: the mark has its changes."""
    model: Model
    states: bytes = b""
    """In the mark."""


@dataclass
class Lane:
    """One owner of a lane after another. `directory`: of the stores; None for images in memory."""

    directory: Path | None
    latest_max: int = 0
    """Bytes of changes that may be in the mark alone."""
    by_item: bool = False
    """The map is read by item."""
    log: list[Result] = field(default_factory=list)
    """Committed."""
    results: list[Result] = field(default_factory=list)
    """Not committed."""
    first: int = 0
    """How many of the first ones were trimmed."""
    states: bytes = b""
    read: int = 0
    """How many frames the last owner has read."""

    async def open(self, stack: AsyncExitStack, *, identity: StoreIdentity = IDENTITY) -> None:
        """The next owner. Its store closes with `stack`."""
        image: Image = StateImage()
        if self.directory is not None:
            image = await stack.enter_async_context(open_disk_image(self.directory, identity, "p/v/in-v.0"))
        self.image = image
        self.results = []
        limits = {"size_max": 1 << 40, "key_size_max": 1 << 30, "latest_max": self.latest_max}
        self.state = KeyedState("p/v/in-v.0", image=image, **limits)
        self.state.stored_states(self.states)
        kept, frames = self.state.kept, self.frames
        start = 0
        if kept is not None and self.first <= kept.frame.number <= len(frames):
            self.state.resume()
            start = kept.frame.number
        else:
            self.state.start_over()
        for number, frame in enumerate(frames[start:], start + 1):
            for data in frame:
                self.state.load(decode_step(data))
            self.state.reached(lambda number=number: position(number))  # type: ignore[misc]
        self.state.loaded()
        assert not self.state.is_behind
        self.read = len(frames) - start
        self.state.declare(STATES)
        if self.by_item:
            self.image.read_by_item([1])
        self.states = self.state.encoded_states

    async def open_kept(self, stack: AsyncExitStack) -> None:
        """The next owner, of a lane whose changelog ends with what its store has."""
        assert self.directory is not None
        self.image = await stack.enter_async_context(open_disk_image(self.directory, IDENTITY, "p/v/in-v.0"))
        self.state = KeyedState("p/v/in-v.0", size_max=1 << 40, key_size_max=1 << 30, image=self.image, latest_max=0)
        if self.image.kept is None:
            self.state.start_over()
        else:
            self.state.resume()
        self.state.declare(STATES)
        self.state.loaded()

    @property
    def frames(self) -> list[list[bytes]]:
        """Those that are committed."""
        return [result.frame for result in self.log if result.frame]

    @property
    def model(self) -> Model:
        """The state after the last result."""
        return [*self.log, *self.results][-1].model if self.log or self.results else {}

    def apply(self, changes: Changes) -> None:
        """The changes of a call."""
        keys = sorted({key for (key, _, _), _ in changes})
        columns = StateChanges(
            array("I", [keys.index(key) for (key, _, _), _ in changes]),
            bytes(state for (_, state, _), _ in changes),
            [item for (_, _, item), _ in changes],
            [b"" if value is None else value[0] for _, value in changes],
            bytes(value is None for _, value in changes),
            [0 if value is None else value[1] for _, value in changes],
        )
        assert self.state.apply(keys, columns) is None

    def take(self, model: Model) -> None:
        """The changes since the last call are a result, after which the state is this one."""
        if (frame := [data for data, _ in self.state.take_steps()]) or self.latest_max:
            self.results.append(Result(frame, model, self.state.encoded_states))

    def commit(self, results: int) -> None:
        """The next results are committed."""
        done = self.results[:results]
        self.log += done
        del self.results[:results]
        number = len(self.frames)
        if done:
            self.states = done[-1].states
        if frames := sum(bool(result.frame) for result in done):
            self.state.committed(frames, lambda: position(number))

    def check(self) -> None:
        """The state is that of the model, by each way to look at it."""
        model = self.model
        found = {(key, number, item): (one.value, one.expires_us) for key, number, item, one in self.state.all()}
        assert found == model, (found.items() - model.items(), model.items() - found.items())
        sizes = [len(key) + len(item) + len(value) + 16 for (key, _, item), (value, _) in model.items()]
        assert self.state.size == sum(sizes)
        assert sum(self.image.sizes) == self.state.size
        keys = sorted({key for key, _, _ in model}) or [b"none"]
        of_keys = [(key, *name, parts_of(one)[:2]) for key in keys for *name, one in self.image.of_key(key)]
        assert of_keys == [(*entry, value) for entry, value in sorted(model.items())]
        self._check_items()
        if self.by_item and self.directory is not None:
            return
        entries = self.state.entries(keys, range(len(keys)), 0)
        rows = zip(entries.keys, entries.states, entries.items, entries.values, strict=True)
        assert [(keys[key], state, item, value) for key, state, item, value in rows] == [
            (*entry, value) for entry, (value, _) in sorted(model.items())
        ]

    def _check_items(self) -> None:
        items: dict[bytes, list[bytes]] = {b"none": []}
        for key, state, item in sorted(self.model):
            if state == 1:
                items.setdefault(key, []).append(item)
        for first, end in ((b"", b""), (b"h", b"i\0"), (b"i", b"j"), (b"i" * 300, b"")):
            for key, wanted in items.items():
                found = [*self.image.items_from(1, key, first, end)]
                assert found == [item for item in wanted if first <= item and (not end or item < end)]

    def due(self) -> Iterator[tuple[int, Entry]]:
        """Take everything from the agendas that is still due, in order for each state."""
        for number in range(len(STATES)):
            agenda = self.image.agenda(number)
            while agenda.first_us is not None:
                due = agenda.take()
                stored = self.image.get(number, due.key, due.item)
                if getattr(stored, "expires_us", 0) == due.time_us:
                    yield due.time_us, (due.key, number, due.item)


def position(number: int) -> Position:
    """After the frame of this number."""
    return Position(Witness(IDENTITY.lane, number, number, number * 7), ())


def store_of(image: Image) -> Path:
    """The file of its store."""
    assert isinstance(image, DiskImage)
    return image._store._directory.data


def lmdb_of(image: Image) -> lmdb.Environment:
    """The LMDB of its store, which has not been looked at since its last transaction."""
    assert isinstance(image, DiskImage)
    environment = image._store._environment
    assert environment is not None
    return environment
