"""The entries of a lane's state in LMDB, as they were committed up to a frame of the changelog.

    write: changes, or steps ─► one transaction: entries, their times, sizes, and the position in the changelog
    of_key, of_slot, due     ─► a view of the last transaction, until the next one

It is used by one process and one thread. Transactions are not synced: see `directory`. An error of LMDB other than a
full disk means that the store is damaged. It is removed then, and the lane starts again and makes it anew.

Above it: the image. Below it: LMDB, rows and the directory.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from typing import NamedTuple
from zlib import crc32

import lmdb
from google.protobuf.message import DecodeError

from millstream import codes
from millstream.durable import step
from millstream.errors import InfrastructureError, MillstreamError, StorageFullError
from millstream.ledger.protocol import Witness
from millstream.limits import MIB
from millstream.wire.state.v1 import store_pb2
from millstream_vertex.keyed.agenda import Due
from millstream_vertex.keyed.disk import rows
from millstream_vertex.keyed.disk.directory import StoreDirectory
from millstream_vertex.keyed.image import (
    LAST_SLOT,
    SLOTS,
    Position,
    SlotCycle,
    Stored,
    WrittenSlots,
    rows_of,
    size_of,
)
from millstream_vertex.keyed.steps import Step

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that free space resolves."""
_OF_THE_SYSTEM = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors that say nothing of the store."""
_MAP_BYTES = 256 * MIB
"""How much of the address space a new store takes. It is doubled whenever the store needs more."""
_PROGRESS = b"progress"

Changes = dict[tuple[bytes, int, bytes], Stored | None]
"""What entries have become, by key, state and item; None: they are gone."""
KeyEntries = dict[tuple[int, bytes], Stored]
"""The entries of a key, by state and item."""


class StoreIdentity(NamedTuple):
    """Whose state it is."""

    ledger_id: str
    lane: str
    """Key of the lane."""


class Store:
    """An open store. It is not used before `read_progress`."""

    def __init__(self, directory: StoreDirectory, identity: StoreIdentity, where: str) -> None:
        """`where`: names the lane in messages."""
        self._directory = directory
        self._identity = identity
        self._where = where
        self._environment: lmdb.Environment | None = None
        self._view: lmdb.Transaction[bytes] | None = None
        """The last transaction, from the first look at it on."""
        self._cursor: lmdb.Cursor[bytes] | None = None
        """Of its entries."""
        self.sizes = [0] * SLOTS
        """Bytes of the entries of each slot."""
        self.kept: tuple[Position, SlotCycle] | None = None
        """Up to where the entries are those of the changelog; None: nowhere."""
        self._open()

    def _open(self) -> None:
        environment = lmdb.open(
            str(self._directory.data),
            subdir=False,
            map_size=max(_MAP_BYTES, 2 * self._file_bytes),
            mode=0o600,
            max_dbs=2,
            # The pages of random keys are no reason to read their neighbours.
            readahead=False,
            # The process has the directory for itself, and no view is open during a transaction.
            lock=False,
            sync=False,
            metasync=False,
        )
        try:
            pages = environment.info()["last_pgno"] + 1
            if self._file_bytes < pages * environment.stat()["psize"]:
                raise lmdb.CorruptedError("the file is shorter than it says")
            self._entries = environment.open_db(b"entries")
            self._times = environment.open_db(b"times")
        except BaseException:
            environment.close()
            raise
        self._environment = environment

    @property
    def _file_bytes(self) -> int:
        data = self._directory.data
        return data.stat().st_size if data.exists() else 0

    def read_progress(self) -> None:
        """Take over what the store says of itself. Raises `ValueError` if it is not of this state, or of another
        version."""
        data = self._now().get(_PROGRESS)
        if data is None:
            return
        try:
            found = store_pb2.StoreProgress.FromString(data)
        except DecodeError as error:
            raise ValueError(f"its progress does not decode: {error}") from error
        if (found.format, found.slots) != (rows.FORMAT, SLOTS) or len(found.sizes) != SLOTS:
            raise ValueError("it was written by another version")
        if StoreIdentity(found.ledger_id, found.lane) != self._identity:
            raise ValueError("it is of another run, or of another lane")
        frame = Witness(found.lane, found.sequence, found.number, found.commit)
        written = [WrittenSlots(*one) for one in zip(found.written_before, found.written_slots, strict=True)]
        self.sizes = list(found.sizes)
        self.kept = Position(frame, written), SlotCycle(found.next_slot, found.unwritten)

    def start_over(self) -> None:
        """Remove all entries. Raises `InfrastructureError`."""
        try:
            if self.kept is None and not self._now().stat(self._entries)["entries"]:
                return
            self.close()
            self._directory.remove()
            self.sizes, self.kept = [0] * SLOTS, None
            self._open()
        except (lmdb.Error, OSError) as error:
            raise self._explained(error) from error

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._environment is not None

    def close(self) -> None:
        """Close it, as it is."""
        self._end_view()
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def sync(self) -> None:
        """Return when everything is durable. The one call that another thread may make. Raises `OSError`."""
        assert self._environment is not None
        with step("store.sync"):
            try:
                self._environment.sync(True)
            except lmdb.Error as error:
                raise OSError(str(error)) from error

    # Reading.

    def of_key(self, key: bytes, left_out: Collection[int] = ()) -> tuple[KeyEntries, int]:
        """The entries of a key, without those of some states, and the bytes of what is stored of them."""
        if left_out:
            return self._of_states(key, left_out)
        prefix = rows.key_prefix(key)
        end, size = len(prefix), 0
        found: KeyEntries = {}
        try:
            cursor = self._entries_now()
            if not cursor.set_range(prefix):
                return found, size
            for name, data in cursor:
                if not name.startswith(prefix):
                    break
                size += len(data)
                if data[0]:
                    _, state, item = rows.names_of(name, data)
                    found[state, item] = rows.stored_of(data)
                else:
                    found[name[end], name[end + 2 :]] = data[1:]
        except (lmdb.Error, OSError) as error:
            raise self._explained(error) from error
        return found, size

    def _of_states(self, key: bytes, left_out: Collection[int]) -> tuple[KeyEntries, int]:
        """As `of_key`, from state to state."""
        prefix, size = rows.key_prefix(key), 0
        found: KeyEntries = {}
        try:
            cursor = self._entries_now()
            more = cursor.set_range(prefix)
            while more and (name := cursor.key()).startswith(prefix):
                state, data = rows.state_in(name), cursor.value()
                if state in left_out:
                    more = cursor.set_range(rows.after_state(prefix, state))
                    continue
                _, _, item = rows.names_of(name, data)
                found[state, item] = rows.stored_of(data)
                size += len(data)
                more = cursor.next()
        except (lmdb.Error, OSError) as error:
            raise self._explained(error) from error
        return found, size

    def get(self, key: bytes, state: int, item: bytes) -> Stored | None:
        """One entry."""
        try:
            data = self._now().get(rows.name_of(rows.key_prefix(key), state, item), db=self._entries)
        except (lmdb.Error, OSError) as error:
            raise self._explained(error) from error
        return None if data is None else rows.stored_of(data)

    def items_from(self, key: bytes, state: int, first: bytes, end: bytes) -> Iterator[bytes]:
        """The items of a key from `first` to before `end` (empty: to the last one), in order. Not across a `write`."""
        prefix = rows.key_prefix(key)
        in_names, in_data = rows.items_prefix(prefix, state), rows.long_items_prefix(prefix, state)
        try:
            # Those that are in no name, in any order; they are few.
            cursor = self._now().cursor(self._entries)
            more, long = cursor.set_range(in_data), list[bytes]()
            while more and cursor.key().startswith(in_data):
                long.append(rows.names_of(cursor.key(), cursor.value())[2])
                more = cursor.next()
            for item in merge(self._items_in_names(cursor, in_names, first), sorted(long)):
                if end and item >= end:
                    return
                if item >= first:
                    yield item
        except (lmdb.Error, OSError) as error:
            raise self._explained(error) from error

    @staticmethod
    def _items_in_names(cursor: lmdb.Cursor[bytes], prefix: bytes, first: bytes) -> Iterator[bytes]:
        more = cursor.set_range(prefix + first[: rows.ITEM_BYTES_MAX])
        while more and (name := cursor.key()).startswith(prefix):
            yield name[len(prefix) :]
            more = cursor.next()

    def of_slot(self, slot: int) -> Iterator[tuple[bytes, int, bytes, Stored]]:
        """Key, state, item and value of each entry of a slot. Not across a `write`."""
        prefix = rows.slot_prefix(slot)
        try:
            cursor = self._entries_now()
            if not cursor.set_range(prefix):
                return
            for name, data in cursor:
                if not name.startswith(prefix):
                    break
                if data[0]:
                    yield *rows.names_of(name, data), rows.stored_of(data)
                else:
                    end = 3 + name[2]
                    yield name[3:end], name[end], name[end + 2 :], data[1:]
        except (lmdb.Error, OSError) as error:
            raise self._explained(error) from error

    def due(self, state: int, after: bytes) -> tuple[bytes, Due] | None:
        """The first entry of a state that has a time; None if there is none. `after`: of those after it, the first item
        of an earlier answer, which is the first item of this one."""
        prefix = rows.times_prefix(state)
        try:
            view = self._now()
            cursor = view.cursor(self._times)
            if not cursor.set_range(after + b"\0" if after else prefix):
                return None
            found = cursor.key()
            if not found.startswith(prefix):
                return None
            _, time_us, name = rows.time_in(found)
            data = view.get(name, db=self._entries)
            if data is None:
                raise lmdb.CorruptedError("a time is of no entry")
            key, _, item = rows.names_of(name, data)
            return found, Due(time_us, key, item)
        except (lmdb.Error, OSError) as error:
            raise self._explained(error) from error

    def _entries_now(self) -> lmdb.Cursor[bytes]:
        if self._cursor is None:
            self._cursor = self._now().cursor(self._entries)
        return self._cursor

    def _now(self) -> lmdb.Transaction[bytes]:
        if self._view is None:
            assert self._environment is not None, "it is open"
            self._view = self._environment.begin()
        return self._view

    def _end_view(self) -> None:
        self._cursor = None
        if self._view is not None:
            self._view.abort()
            self._view = None

    # Writing.

    def write(self, changes: Changes, position: Position, cycle: SlotCycle) -> None:
        """These changes, which lead to this position. Raises `StorageFullError`: nothing is written."""
        self._write(lambda writing: writing.put_all(changes), (position, cycle))

    def write_steps(self, steps: Sequence[Step], kept: tuple[Position, SlotCycle] | None) -> None:
        """What these steps say, which leads to this position; None if earlier steps are missing as yet. Raises as
        `write`."""

        def put(writing: _Writing) -> None:
            for one in steps:
                writing.clear(range(one.first_slot, one.first_slot + one.slots))
                for key, state, item, stored in rows_of(one.entries):
                    writing.put(key, state, item, stored)

        self._write(put, kept)

    def _write(self, put: Callable[[_Writing], None], kept: tuple[Position, SlotCycle] | None) -> None:
        assert self._environment is not None, "it is open"
        self._end_view()
        while True:
            sizes = self.sizes.copy()
            try:
                with step("store.write"), self._environment.begin(write=True) as transaction:
                    put(_Writing(transaction, self._entries, self._times, sizes))
                    if kept is not None:
                        transaction.put(_PROGRESS, self._progress(sizes, kept))
                    else:
                        transaction.delete(_PROGRESS)
                break
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except (lmdb.Error, OSError) as error:
                raise self._explained(error) from error
        self.sizes, self.kept = sizes, kept

    def _progress(self, sizes: Sequence[int], kept: tuple[Position, SlotCycle]) -> bytes:
        (frame, written), cycle = kept
        return store_pb2.StoreProgress(
            format=rows.FORMAT,
            ledger_id=self._identity.ledger_id,
            lane=self._identity.lane,
            slots=SLOTS,
            sizes=sizes,
            sequence=frame.sequence,
            number=frame.number,
            commit=frame.commit,
            written_before=[before for before, _ in written],
            written_slots=[slots for _, slots in written],
            next_slot=cycle.next_slot,
            unwritten=cycle.unwritten,
        ).SerializeToString()

    def _explained(self, error: lmdb.Error | OSError) -> MillstreamError:
        """Our error for one of LMDB or of the system."""
        # One that is raised here has no number.
        number = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
        what = f"{self._where}: the store of its state in {self._directory.path}"
        if number in NO_SPACE or isinstance(error, lmdb.DiskError):
            return StorageFullError(
                codes.DISK_FULL, f"{what} cannot grow: {error}. The lane waits until there is space"
            )
        if isinstance(error, OSError) or number in _OF_THE_SYSTEM:
            return InfrastructureError(codes.CANNOT_WRITE, f"{what} cannot be used: {error}")
        self.close()
        with suppress(OSError):
            self._directory.remove()
        return InfrastructureError(
            codes.CANNOT_READ,
            f"{what} is damaged ({error}) and was removed. Nothing is lost: the lane makes it anew from its ledger",
        )


class _Writing:
    """A transaction."""

    def __init__(
        self, transaction: lmdb.Transaction[bytes], entries: lmdb._Database, times: lmdb._Database, sizes: list[int]
    ) -> None:
        self._cursor = transaction.cursor(entries)
        self._transaction = transaction
        self._times = times
        self._sizes = sizes

    def put(self, key: bytes, state: int, item: bytes, stored: Stored | None) -> None:
        """An entry; None: it is gone."""
        name = rows.name_of(rows.key_prefix(key), state, item)
        if stored is None:
            before, expires_us = self._cursor.pop(name), 0
        else:
            data = rows.data_of(key, item, stored)
            before, expires_us = self._cursor.replace(name, data), rows.expires_us_in(data)
        grown = size_of(key, item, stored)
        if before is not None:
            grown -= rows.size_in(name, before)
            self._replaced(name, before, expires_us)
        if expires_us:
            self._transaction.put(rows.time_name(state, expires_us, name), b"", db=self._times)
        self._sizes[crc32(key) & LAST_SLOT] += grown

    def put_all(self, changes: Changes) -> None:
        """What entries have become."""
        replace, sizes = self._cursor.replace, self._sizes
        for (key, state, item), stored in changes.items():
            if type(stored) is not bytes or len(key) > rows.KEY_BYTES_MAX or len(item) > rows.ITEM_BYTES_MAX:
                self.put(key, state, item, stored)
                continue
            # As `put`, for what most entries are.
            prefix = rows.key_prefix(key)
            name = rows.name_of(prefix, state, item)
            before = replace(name, b"\0" + stored)
            if before is None:
                sizes[crc32(key) & LAST_SLOT] += size_of(key, item, stored)
            elif before[0]:
                self._replaced(name, before, 0)
                sizes[crc32(key) & LAST_SLOT] += size_of(key, item, stored) - rows.size_in(name, before)
            elif len(before) != len(stored) + 1:
                sizes[crc32(key) & LAST_SLOT] += len(stored) + 1 - len(before)

    def _replaced(self, name: bytes, before: bytes, expires_us: int) -> None:
        """An entry was replaced by one that has this time."""
        old_us = rows.expires_us_in(before)
        if old_us and old_us != expires_us:
            self._transaction.delete(rows.time_name(rows.state_in(name), old_us, name), db=self._times)

    def clear(self, slots: Iterable[int]) -> None:
        """Remove the entries of these slots."""
        for slot in slots:
            prefix = rows.slot_prefix(slot)
            if not self._sizes[slot] or not self._cursor.set_range(prefix):
                continue
            while (name := self._cursor.key()).startswith(prefix):
                if expires_us := rows.expires_us_in(self._cursor.value()):
                    time_name = rows.time_name(rows.state_in(name), expires_us, name)
                    self._transaction.delete(time_name, db=self._times)
                if not self._cursor.delete():
                    break
            self._sizes[slot] = 0
