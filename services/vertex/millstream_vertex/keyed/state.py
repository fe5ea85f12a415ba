"""The keyed state of one lane: which states it has, what a call gets of them, and what becomes of its changes. Pure.

    entries(keys) ─► (call) ─► apply(changes) ─► take_steps ─► changelog
                                  └─ undo, if something of the result is refused

The image is always as after the last result, whether that is committed or not: results are committed in order, and an
owner that cannot commit one starts again from the changelog. Above it: the stage. Below it: the image and the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, cast

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.errors import DamageError, UdfError
from millstream.limits import KIB
from millstream.udf.states import DeclaredState, StateChanges, StateClock, StateEntries, StateKind
from millstream.wire.state.v1 import state_pb2
from millstream_vertex.keyed.agenda import Agenda
from millstream_vertex.keyed.image import (
    SLOTS,
    Image,
    Position,
    SlotCycle,
    StateImage,
    Stored,
    Versioned,
    add_row,
    expires_us_of,
    parts_of,
    rows_of,
)
from millstream_vertex.keyed.keys import is_of_table
from millstream_vertex.keyed.numbers import StateNumbers
from millstream_vertex.keyed.reads import CallReads
from millstream_vertex.keyed.steps import Entries, Step, decode_step, encode_steps
from millstream_vertex.keyed.timers import Timer, Timers, is_set_to, stored_timer, timer_of

COMPACTED_FROM_BYTES = 64 * KIB
"""So many bytes of changes are written before slots are written anew: many small slots at once cost little."""
UNWRITTEN_READ_MAX = 16 * COMPACTED_FROM_BYTES
"""At most so many bytes of changes of former owners count. A changelog that has more was not written by a lane, and the
slots for all of it would not fit into a commit."""
LATEST_BYTES_MAX = 3 * KIB
"""So many bytes of changes may be in the mark alone. A commit of one frame of output is one message then, which the
broker syncs once, and a batch several times."""
_SLOTS_AT_ONCE = 16
EXPIRED_MAX = 1000
"""Expired entries that are removed at once: more wait for the next time, so that records do not wait for them."""


class EntryChange(NamedTuple):
    """A change of one entry that no call has made."""

    key: bytes
    state: int
    """The number of its state."""
    item: bytes
    stored: Stored | None
    """None: it is removed."""


class _Overwritten(NamedTuple):
    """What entries were, by columns."""

    states: Sequence[int]
    keys: Sequence[bytes]
    items: Sequence[bytes]
    """Empty: none has an item."""
    before: Sequence[Stored | None]


class _Before(NamedTuple):
    """What a result finds, and puts back if it is taken back."""

    changes: Entries
    """Those that are not in the changelog."""
    kept: int
    """How many these are."""
    latest: bytes
    """What the mark has of them."""
    cycle: SlotCycle
    fired: tuple[int, int, int]
    """What the mark has of timers that have fired."""


class KeyedState:
    """The state of one lane."""

    def __init__(
        self,
        where: str,
        *,
        size_max: int,
        key_size_max: int,
        image: Image | None = None,
        latest_max: int | None = None,
    ) -> None:
        """`where`: names the lane in messages. `size_max`, `key_size_max`: bytes of all entries, and of those of a
        key. `image`: an image without states; None for one in memory. `latest_max`: bytes of changes that may be in the
        mark alone, by default `LATEST_BYTES_MAX`."""
        self._where = where
        self._size_max = size_max
        self._key_size_max = key_size_max
        self._image: Image = StateImage() if image is None else image
        self._states = state_pb2.KeyedState(slots=SLOTS)
        self._numbers = StateNumbers()
        self._latest_max = LATEST_BYTES_MAX if latest_max is None else latest_max
        self._changes = Entries()
        """What is changed and not in the changelog: what the mark has, and what follows it."""
        self._before = _Before(self._changes, 0, b"", SlotCycle(0, 0), (0, 0, 0))
        """As of the result before the one that may be taken back."""
        self._undo: list[_Overwritten] = []
        """What entries were before the result that may be taken back."""
        self._anew: list[tuple[bytes, int]] = []
        """Steps with slots that are written anew, for the next result."""
        self._unwritten = 0
        """Bytes of changes for which no slots have been written anew. Negative: of slots that are written ahead; one of
        a large state has more bytes than the changes for which it is written."""
        self._next_slot = 0
        self._changes_read = 0
        """How many steps of changes were read in the changelog."""
        self._is_loading = False
        """Whether a part of the changelog that was read is not in the image yet."""
        self._timer_state: int | None = None
        """Number of the state with the timers."""
        self._timers = Timers(self._stored_timer, self._stored_timers)
        self.watermark_us = START_OF_TIME_US
        """The watermark that the lane has reached."""
        self.tables_size = 0
        """Bytes of the entries that are of tables, which have bounds of their own."""

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return self._image.size

    @property
    def stored(self) -> Sequence[state_pb2.StoredState]:
        """The states that have, or had, entries."""
        return self._states.states

    def all(self) -> Iterator[tuple[bytes, int, bytes, Versioned]]:
        """Key, number of the state, item and value of every entry."""
        for slot in range(SLOTS):
            for key, state, item, stored in self._image.of_slot(slot):
                yield key, state, item, Versioned(*parts_of(stored))

    @property
    def last_edit(self) -> tuple[int, int]:
        """Sequence and number of the last edit that was made or refused, in the inbox of the lane; 0: none was."""
        return self._states.edit_sequence, self._states.edit_number

    def edited(self, sequence: int, number: int) -> None:
        """This edit was made or refused, and is committed with the result."""
        self._states.edit_sequence, self._states.edit_number = sequence, number

    # Opening.

    def stored_states(self, data: bytes) -> None:
        """Take over the states of the mark. Raises `DamageError`."""
        try:
            self._states = state_pb2.KeyedState.FromString(data) if data else self._states
        except DecodeError as error:
            raise self._damaged(f"its list of states does not decode: {error}") from error
        if self._states.slots != SLOTS:
            raise self._damaged(f"its entries are in {self._states.slots} slots instead of {SLOTS}")
        for number, state in enumerate(self._states.states):
            if state.kind not in map(int, StateKind):
                raise self._damaged(f"its state {state.name!r} is of kind {state.kind}, which there is not")
            self._add_state(number, StateKind(state.kind))
        self.latest()
        if self._states.HasField("expired_until_us"):
            self.watermark_us = max(self.watermark_us, self._states.expired_until_us)

    def latest(self) -> Entries:
        """The changes that are in the mark and not in the changelog. Raises `DamageError`."""
        if not self._states.latest:
            return Entries()
        try:
            entries = decode_step(self._states.latest).entries
        except ValueError as error:
            raise self._damaged(f"its latest changes do not decode: {error}") from error
        self._check_states(entries)
        return entries

    def _check_states(self, entries: Entries) -> None:
        if entries.states and max(entries.states) >= len(self._states.states):
            raise self._damaged(f"an entry is of state {max(entries.states)}, which there is not")

    def _add_state(self, number: int, kind: StateKind) -> None:
        if kind is StateKind.TIMER:
            self._timer_state = number
        self._image.add_state(has_items=kind.has_items)

    @property
    def kept(self) -> Position | None:
        """Up to where the image has the changelog already; None if it has nothing."""
        return self._image.kept[0] if self._image.kept is not None else None

    def resume(self) -> None:
        """The image is good: only what follows will be loaded."""
        assert self._image.kept is not None, "it has something"
        self._next_slot, self._unwritten = self._image.kept[1]

    def start_over(self) -> None:
        """The image is not, or what was loaded was not complete: everything will be loaded."""
        self._image.start_over()
        self._next_slot = self._unwritten = self._changes_read = 0
        self._is_loading = False

    def load(self, step: Step) -> None:
        """Do what a step of the changelog says. Raises `DamageError`."""
        self._check_states(step.entries)
        if step.first_slot + step.slots > SLOTS:
            raise self._damaged(f"a step has slots up to {step.first_slot + step.slots}")
        self._image.load(step)
        if step.slots:
            self._next_slot = (step.first_slot + step.slots) % SLOTS
        if step.is_of_slots:
            self._unwritten -= step.entries.size
        else:
            self._unwritten += step.size
            self._changes_read += 1

    def reached(self, position: Callable[[], Position]) -> None:
        """The changelog is loaded up to here."""
        self._image.reached(position, self._cycle)

    def loaded(self) -> None:
        """The changelog is loaded, or will be with the next `store`, if the image is behind."""
        self._image.loaded()
        self._is_loading = True
        if not self._image.is_behind:
            self._finish_loading()

    def _finish_loading(self) -> None:
        self._is_loading = False
        self._unwritten += self._changes_read * (self._image.size // self._image.cycle_results_max)
        self._unwritten = max(-max(self._image.sizes), min(self._unwritten, UNWRITTEN_READ_MAX))
        self._changes = self.latest()
        self._image.put_all(self._changes)
        try:
            self._timers.load()
        except (TypeError, ValueError) as error:
            raise self._damaged(f"a timer is not one: {error}") from error

    def declare(self, declared: Sequence[DeclaredState]) -> None:
        """The states that the function declares. Raises `UdfError` if what is stored does not fit them."""
        stored = {state.name: number for number, state in enumerate(self._states.states)}
        kept = {state.name for state in self._states.states if state.kind == StateKind.TABLE}
        gone = sorted(stored.keys() - {state.name for state in declared} - kept)
        if self._timer_state is not None and (timers := self._states.states[self._timer_state].name) in gone:
            if self._timers:
                raise self._misfit(
                    f"the function has no `on_timer`, and {len(self._timers):,} timers are set",
                    "Give it one again, even if it does nothing",
                )
            gone.remove(timers)
        if gone:
            raise self._misfit(
                f"the function does not declare {_quoted(gone)}, of which there are stored values",
                "Declare it again, even if the function no longer uses it",
            )
        for state in declared:
            if state.name in stored:
                self._check_fits(state, self._states.states[stored[state.name]])
        numbers = list[int]()
        for state in declared:
            number = stored.get(state.name)
            if number is None:
                number = len(self._states.states)
                self._states.states.add(
                    name=state.name, kind=state.kind, codec=state.codec, item_codec=state.item_codec
                )
                self._add_state(number, state.kind)
            self._states.states[number].clock = state.clock
            numbers.append(number)
        self._numbers.declare(declared, numbers)
        self._image.read_by_item(self._numbers.lazy.values())

    def _check_fits(self, state: DeclaredState, stored: state_pb2.StoredState) -> None:
        kept = (StateKind(stored.kind), stored.codec, stored.item_codec)
        if kept != (state.kind, state.codec, state.item_codec):
            raise self._misfit(
                f"the stored values of `{state.name}` are a {_described(*kept)}, and the function declares a "
                f"{_described(state.kind, state.codec, state.item_codec)}",
                "Give the state another name, which then starts without values",
            )
        if stored.version > state.version:
            raise self._misfit(
                f"there are stored values of version {stored.version} of `{state.name}`, and the function has version "
                f"{state.version}",
                "Run the newer function: an older one cannot read what it has written",
            )
        if stored.version and stored.oldest_version < state.oldest_version:
            raise self._misfit(
                f"there may be stored values of version {stored.oldest_version} of `{state.name}`, and the function, "
                f"with version {state.version}, cannot read them",
                f"Let it convert them: `version={state.version}, migrate={{{stored.oldest_version}: ...}}`",
            )

    def adopt(self, state: state_pb2.StoredState) -> int:
        """The number of a state that another lane of the vertex has; it is added if this one does not have it. Raises
        `UdfError` if this one has another under its name."""
        for number, own in enumerate(self._states.states):
            if own.name != state.name:
                continue
            kinds = [(StateKind(one.kind), one.codec, one.item_codec) for one in (own, state)]
            if kinds[0] != kinds[1]:
                what = (
                    f"`{state.name}` is a {_described(*kinds[0])} here, and a {_described(*kinds[1])} in another lane"
                )
                raise self._misfit(what, "Run the pipeline as it was, and start over with --fresh")
            return number
        added = self._states.states.add()
        added.CopyFrom(state)
        number = len(self._states.states) - 1
        self._add_state(number, StateKind(state.kind))
        return number

    @property
    def _left_out(self) -> Collection[int]:
        """The numbers of the stored states that do not come with calls."""
        lazy = self._numbers.lazy.values()
        return {*lazy} if self._timer_state is None else {*lazy, self._timer_state}

    @property
    def encoded_states(self) -> bytes:
        """What `stored_states` takes, for the mark with the result of `take_steps`."""
        return self._states.SerializeToString()

    # Calls.

    def entries(
        self, keys: Sequence[bytes], record_keys: Sequence[int], now_us: int, timers: Sequence[Timer] = ()
    ) -> StateEntries:
        """What a call gets of these keys, without what is lazy. `record_keys`: which of them each record has. `now_us`:
        by the clock. `timers`: of a call of timers, that of each key."""
        found = self._image.of_keys(keys, self._left_out)
        if set(map(type, found.stored)) <= {bytes}:
            values = cast("Sequence[bytes]", found.stored)
            states = found.states.translate(self._numbers.declared)
            return StateEntries(record_keys, found.keys, states, found.items, values)
        numbers: list[int] = []
        declared, items, values, versions = bytearray(), list[bytes](), list[bytes](), list[int]()
        for number, state, item, stored in zip(
            found.keys, found.states, found.items or repeat(b""), found.stored, strict=False
        ):
            value, expires_us, version = parts_of(stored)
            if expires_us and self._is_over(state, expires_us, now_us, timers[number] if timers else None):
                continue
            numbers.append(number)
            declared.append(self._numbers.declared[state])
            items.append(item)
            values.append(value)
            versions.append(version)
        return StateEntries(record_keys, numbers, bytes(declared), items, values, versions)

    def reader(self, keys: Sequence[bytes], now_us: int, timers: Sequence[Timer] = ()) -> CallReads | None:
        """What a call reads of lazy states, until its changes are applied; None if there are none. Arguments: as for
        `entries`."""
        if not self._numbers.lazy:
            return None

        def is_over(key: int, state: int, expires_us: int) -> bool:
            return self._is_over(state, expires_us, now_us, timers[key] if timers else None)

        return CallReads(self._image, keys, self._numbers.lazy, is_over)

    def apply(self, keys: Sequence[bytes], changes: StateChanges) -> str | None:
        """What a call has changed. Returns why it is refused, if it is: nothing of it is applied then."""
        if not changes.keys:
            return None
        before = len(self._undo), len(self._changes), self._image.size
        self._image.grown.clear()
        self._put_all(self._entries_of(keys, changes))
        refused = self._refusal(before[2])
        if refused is None:
            for number in set(changes.states):
                stored = self._states.states[self._numbers.stored[number]]
                self._note_version(stored, self._numbers.declarations[number].version)
            return None
        self._take_back(before[0])
        self._changes.cut(before[1])
        return refused

    def _put_all(self, entries: Entries) -> None:
        if self._timer_state is None or self._timer_state not in entries.states:
            self._undo.append(_Overwritten(entries.states, entries.keys, entries.items, self._image.put_all(entries)))
            self._changes.extend(entries)
            return
        for key, state, item, stored in rows_of(entries):
            if state == self._timer_state:
                self._set_timer(state, key, item, cast("bytes | None", stored))
            else:
                self._put(state, key, item, stored)

    def _entries_of(self, keys: Sequence[bytes], changes: StateChanges) -> Entries:
        """The changes of a call, with the numbers under which states are stored."""
        are_first, declarations = self._numbers.are_first_versions, self._numbers.declarations
        entries = Entries(
            [*map(keys.__getitem__, changes.keys)],
            bytearray(changes.states.translate(self._numbers.stored)),
            list(changes.values),
            list(changes.items),
            bytearray(changes.deleted),
            list(changes.expires_us),
            [] if are_first else [declarations[number].version for number in changes.states],
        )
        if any(entries.expires_us):
            entries.fill()
            for index, expires_us in enumerate(entries.expires_us):
                if expires_us and self._clock_of(entries.states[index]) is StateClock.EVENT_TIME:
                    # A late record does not make an entry older. (0 is no time, and later than one before 1970.)
                    name = entries.states[index], entries.keys[index], entries.items[index]
                    if before_us := expires_us_of(self._image.get(*name)):
                        entries.expires_us[index] = max(expires_us, before_us)
        if any(entries.deleted):
            entries.fill()
            for index, gone in enumerate(entries.deleted):
                if gone:
                    entries.values[index], entries.expires_us[index], entries.versions[index] = b"", 0, 1
        return entries

    def write(self, change: EntryChange) -> bool:
        """Change an entry as it is said, without a call: it may be of any version, and expire sooner than before.
        Returns whether it was different."""
        key, state, item, stored = change
        if self._image.get(state, key, item) == stored:
            return False
        self._put(state, key, item, stored)
        if stored is not None:
            _, _, version = parts_of(stored)
            self._note_version(self._states.states[state], version)
        return True

    def refusal_of(self, changes: Collection[EntryChange]) -> str | None:
        """Why the limits do not allow these changes, all of them together; None if they do. Nothing is changed."""
        self.begin()
        self._image.grown.clear()
        size_before = self._image.size
        for key, state, item, stored in changes:
            self._put(state, key, item, stored)
        # Tables have no bound for each key.
        self._image.grown.difference_update([key for key in self._image.grown if is_of_table(key)])
        refused = self._refusal(size_before) if any(change.stored is not None for change in changes) else None
        self.undo()
        return refused

    def of_state(self, state: int) -> Iterator[tuple[bytes, bytes, Stored]]:
        """Key, item and value of each entry of a state."""
        return self._image.of_state(state)

    def entry(self, state: int, key: bytes, item: bytes) -> Stored | None:
        """One entry, also if it has expired and was not removed yet."""
        return self._image.get(state, key, item)

    @staticmethod
    def _note_version(state: state_pb2.StoredState, version: int) -> None:
        state.oldest_version = min(state.oldest_version or version, version)
        state.version = max(state.version, version)

    def _put(self, state: int, key: bytes, item: bytes, stored: Stored | None) -> None:
        before = self._image.put(state, key, item, stored)
        self._undo.append(_Overwritten((state,), (key,), (item,), (before,)))
        if state == self._timer_state:
            self._timers.changed(key, item, cast("bytes | None", before), cast("bytes | None", stored))
        add_row(self._changes, key, state, item, stored)

    def _refusal(self, size_before: int) -> str | None:
        if self._image.size > max(self._size_max + self.tables_size, size_before):
            return (
                f"the state of the lane would have {self._image.size - self.tables_size:,} bytes; at most "
                f"{self._size_max:,} are allowed (`state.maxBytes`)"
            )
        # Others are as large as before, or smaller.
        if largest := self._image.largest_grown(self._key_size_max):
            return (
                f"the state of its key would have {largest:,} bytes; at most {self._key_size_max:,} are allowed "
                "(`state.maxBytesPerKey`)"
            )
        return None

    def begin(self) -> None:
        """Everything up to now stays, whatever happens to the next result."""
        self._undo.clear()
        self._image.begin()
        states = self._states
        fired = (states.fired_event_us, states.fired_processing_us, states.set_again)
        self._before = _Before(self._changes, len(self._changes), states.latest, self._cycle, fired)

    def undo(self) -> None:
        """Take back everything since `begin`."""
        self._take_back(0)
        self._image.undo()
        self._anew.clear()
        states, before = self._states, self._before
        self._changes, states.latest = before.changes, before.latest
        self._changes.cut(before.kept)
        self._next_slot, self._unwritten = before.cycle
        states.fired_event_us, states.fired_processing_us, states.set_again = before.fired

    @property
    def _cycle(self) -> SlotCycle:
        return SlotCycle(self._next_slot, self._unwritten)

    def committed(self, results: int, position: Callable[[], Position]) -> None:
        """The next results with steps are committed. `position`: of the last one in the changelog, until the next
        call."""
        self._image.committed(results, position)

    @property
    def is_behind(self) -> bool:
        """Whether `store` has to be called before anything else."""
        return self._image.is_behind

    def store(self) -> None:
        """Keep what is committed. Raises `StorageFullError`, after which nothing is lost."""
        self._image.store()
        if self._is_loading:
            self._finish_loading()

    def _take_back(self, undone: int) -> None:
        for states, keys, items, befores in reversed(self._undo[undone:]):
            rows = zip(states, keys, items or repeat(b"", len(keys)), befores, strict=True)
            for state, key, item, before in reversed([*rows]):
                after = self._image.put(state, key, item, before)
                if state == self._timer_state:
                    self._timers.changed(key, item, cast("bytes | None", after), cast("bytes | None", before))
        del self._undo[undone:]

    # Expiry.

    def sweep(self, clock: StateClock, now_us: int) -> bool:
        """Remove entries that have expired by this clock, some of them if they are many. Returns whether there were
        any. At the end of its input, what a function remembers stays for the next run and for queries."""
        removed = 0
        if now_us >= END_OF_TIME_US:
            return False
        for state, agenda in self._agendas_of(clock):
            while removed < EXPIRED_MAX and (first_us := agenda.first_us) is not None and first_us <= now_us:
                due = agenda.take()
                # It may have been written again, or removed, since then.
                if expires_us_of(self._image.get(state, due.key, due.item)) == due.time_us:
                    self._put(state, due.key, due.item, None)
                    removed += 1
        return bool(removed)

    @property
    def next_expiry_us(self) -> int | None:
        """When the next entry expires by the clock of the vertex."""
        times_us = [agenda.first_us for _, agenda in self._agendas_of(StateClock.PROCESSING_TIME)]
        return min((time_us for time_us in times_us if time_us is not None), default=None)

    def _agendas_of(self, clock: StateClock) -> Iterator[tuple[int, Agenda]]:
        """The number of each state whose entries expire by this clock, and when they do."""
        for number, state in enumerate(self._states.states):
            if state.clock == clock:
                yield number, self._image.agenda(number)

    def _is_over(self, state: int, expires_us: int, now_us: int, timer: Timer | None) -> bool:
        if timer is not None and self._clock_of(state) is timer.clock:
            # What expires with it, or later, however late it fires.
            return expires_us < timer.at_us
        if self._clock_of(state) is StateClock.PROCESSING_TIME:
            return expires_us <= now_us
        # At the end of its input, nothing that a function would see expires.
        return expires_us <= self.watermark_us < END_OF_TIME_US

    def _clock_of(self, state: int) -> StateClock:
        return StateClock(self._states.states[state].clock)

    # Timers.

    def _set_timer(self, state: int, key: bytes, name: bytes, value: bytes | None) -> None:
        """Set a timer, or cancel it (None)."""
        known = self._stored_timer(key, name)
        if value is None:
            if known is not None:
                self._put(state, key, name, None)
            return
        at_end = self.watermark_us >= END_OF_TIME_US
        if known is not None and is_set_to(known, value) and timer_of(key, name, known).set_at_end <= at_end:
            return
        states, timer = self._states, timer_of(key, name, value)
        by_event_time = timer.clock is StateClock.EVENT_TIME
        number = 0
        if timer.at_us <= (states.fired_event_us if by_event_time else states.fired_processing_us):
            states.set_again += 1
            number = states.set_again
        self._put(state, key, name, stored_timer(value, number=number, set_at_end=at_end))

    def take_due(self, clock: StateClock, until_us: int, most: int) -> list[Timer]:
        """Take the next timers whose time has come by this clock out of the state, in order: at most so many, and one
        of a key, because it may move or cancel the others."""
        found: list[Timer] = []
        keys: set[bytes] = set()
        while len(found) < most and (timer := self._timers.first_due(clock, until_us)) is not None:
            if timer.key in keys:
                break
            assert self._timer_state is not None, "it has timers"
            self._put(self._timer_state, timer.key, timer.name, None)
            keys.add(timer.key)
            found.append(timer)
        if found and clock is StateClock.EVENT_TIME:
            self._states.fired_event_us = max(self._states.fired_event_us, found[-1].at_us)
        elif found:
            self._states.fired_processing_us = max(self._states.fired_processing_us, found[-1].at_us)
        return found

    @property
    def timers_hold_us(self) -> int | None:
        """See `Timers.holds_us`."""
        return self._timers.holds_us

    def next_timer_us(self, clock: StateClock) -> int | None:
        """The time of the next timer by a clock."""
        timer = self._timers.first(clock)
        return None if timer is None else timer.at_us

    def _stored_timer(self, key: bytes, name: bytes) -> bytes | None:
        assert self._timer_state is not None, "it has timers"
        # It never expires, and is always of version 1.
        return cast("bytes | None", self._image.get(self._timer_state, key, name))

    def _stored_timers(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        if self._timer_state is not None:
            yield from cast("Iterator[tuple[bytes, bytes, bytes]]", self._image.of_state(self._timer_state))

    # Changelog.

    def take_steps(self) -> list[tuple[bytes, int]]:
        """The steps to commit with the result, each with how many slots begin in it; empty if the mark has all of
        its changes."""
        self.compact()
        steps = [(data, 0) for data in encode_steps(self._changes)]
        anew, self._anew = self._anew, []
        if not anew and not steps:
            return []
        if not anew and len(steps) == 1 and len(steps[0][0]) <= self._latest_max:
            self._states.latest = steps[0][0]
            return []
        self._states.latest = b""
        changes, self._changes = self._changes, Entries()
        self._unwritten += sum(len(data) for data, _ in steps) + self._image.size // self._image.cycle_results_max
        self._image.took(changes, self._cycle)
        # A change of this result may have been made after a slot was written.
        return anew + steps

    def compact(self) -> None:
        """Write slots anew for the changes in the changelog, if these are many, as a part of the next result.
        `take_steps` does so; while a function works, it costs less."""
        if self._unwritten >= COMPACTED_FROM_BYTES:
            self._anew.extend(self._compacted())

    def all_steps(self) -> Iterator[tuple[bytes, int]]:
        """Steps with everything that is in every slot, each with how many slots begin in it."""
        for first in range(0, SLOTS, _SLOTS_AT_ONCE):
            entries = self._image.entries_of(first, _SLOTS_AT_ONCE)
            for number, data in enumerate(encode_steps(entries, first, _SLOTS_AT_ONCE)):
                yield data, 0 if number else _SLOTS_AT_ONCE

    def _compacted(self) -> Iterator[tuple[bytes, int]]:
        """Steps with the next slots, until they have as many bytes as the changes since the last ones."""
        left = SLOTS
        while left and self._unwritten > 0:
            first, slots, size = self._next_slot, 0, 0
            while slots < left and first + slots < SLOTS and size < self._unwritten:
                size += self._image.sizes[first + slots]
                slots += 1
            for number, data in enumerate(encode_steps(self._image.entries_of(first, slots), first, slots)):
                yield data, 0 if number else slots
            left -= slots
            self._unwritten -= size
            self._next_slot = (first + slots) % SLOTS
        if not left:
            self._unwritten = 0

    def _misfit(self, what: str, advice: str) -> UdfError:
        return UdfError(codes.STATE_MISFIT, f"{self._where}: {what}. {advice}")

    def _damaged(self, what: str) -> DamageError:
        return DamageError(
            codes.STATE_UNREADABLE,
            f"{self._where}: the stored state cannot be read: {what}. Restore the ledger, or start the pipeline over",
        )


def _described(kind: StateKind, codec: str, item_codec: str) -> str:
    # A counter has no encoding of its own to name.
    return kind.name.lower() + (f" of {codec}" if codec else "") + (f" by {item_codec}" if item_codec else "")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
