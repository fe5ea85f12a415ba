"""Tables that a function reads: the latest records of another edge into its vertex, by their keys.

    @udf.map
    class Enrich:
        rates = udf.table(Rate)

        def process(self, record: udf.Record[Payment]) -> dict:
            rate = self.rates.get(record.value.currency)

Above it: users' classes and the context of a call. Below it: the codecs of states. A lane has a copy of every table.
The vertex brings it up to date between two calls, so all records of a call see one version.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Self, TypeGuard, TypeVar, overload

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.context import CURRENT
from millstream_udf.failures import FAILURES, failure
from millstream_udf.misfits import BadOutput
from millstream_udf.state_codecs import Codec, codec_of
from millstream_udf.state_specs import StateError, check_names
from millstream_udf.wire.udf.v1 import udf_pb2

_T = TypeVar("_T")
Key = str | tuple[str, ...]
"""The keys of a record: the only one, or all of them."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table, as a class declares it."""

    name: str
    codec: Codec

    def message(self) -> udf_pb2.Table:
        """The table in `Welcome`."""
        return udf_pb2.Table(name=self.name, codec=self.codec.name)

    def write(self, value: Any) -> bytes:
        """The bytes of a value, for tests. Raises `BadOutput`."""
        try:
            return self.codec.checked(value)
        except BadOutput as error:
            raise BadOutput(f"table {self.name}: {error}") from None


class Table(Mapping[Key, _T]):
    """A table, as a function sees it: read-only, with `[key]`, `.get(key)`, `in`, `len` and iteration over its keys.

    A key is the key of the table's records as text, or all of them as a tuple, if they have several or none. Each read
    makes a new object, so changing one in place changes nothing.
    """

    __slots__ = ("_read", "_stored", "name")

    def __init__(self, name: str, read: Callable[[bytes], _T], stored: Mapping[tuple[bytes, ...], bytes]) -> None:
        self.name = name
        self._read = read
        self._stored = stored

    def __getitem__(self, key: Key) -> _T:
        """Raises `KeyError`, `TypeError` for what is no key, `StateError` for a value that is not of its type."""
        data = self._stored.get(_parts(key))
        if data is None:
            raise KeyError(key)
        try:
            return self._read(data)
        except FAILURES as error:
            raise StateError(f"the value of {key!r} in table {self.name} cannot be read: {failure(error)}") from error

    def __contains__(self, key: object) -> bool:
        return _is_key(key) and _parts(key) in self._stored

    def __iter__(self) -> Iterator[Key]:
        return map(_key_of, self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __repr__(self) -> str:
        return f"<table {self.name} with {len(self)} entries>"


class TableDeclaration(Generic[_T]):
    """A table as an attribute of a class. See `table`."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.name = ""
        self._others: list[str] = []
        """Other attributes with the same declaration, which cannot be."""

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name:
            self._others.append(name)
        else:
            self.name = name

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> Table[_T]: ...
    def __get__(self, instance: object, owner: Any = None) -> Any:
        if instance is None:
            return self
        context = CURRENT.get()
        if context is None or self.name not in context.tables:
            raise StateError(
                f"table {self.name} can only be read while a record is processed: not in __init__, setup or close, not "
                "in a thread of your own. (In tests, give it to millstream_udf.testing.run: tables={...}.)"
            )
        return context.tables[self.name]

    def __set__(self, instance: object, value: object) -> NoReturn:
        raise AttributeError(f"table {self.name} cannot be changed here: its records do that, which come by its edge")

    def spec(self) -> TableSpec:
        """Raises `TypeError` if it has several names."""
        if self._others:
            raise TypeError(f"{' and '.join((self.name, *self._others))} are one table: declare each by itself")
        return TableSpec(self.name, self._codec)


@overload
def table(kind: type[_T], *, codec: str | None = None) -> TableDeclaration[_T]: ...
@overload
def table(kind: Any = Any, *, codec: str | None = None) -> TableDeclaration[Any]: ...
def table(kind: Any = Any, *, codec: str | None = None) -> TableDeclaration[Any]:
    """A table that the function reads, declared as an attribute: the vertex has a table of this name in its `tables`.

    `kind`: the type of its values, which are the values of the records: a dataclass, a model of pydantic or msgspec, a
    TypedDict, `dict`, `bytes`, a class of protobuf messages, ... Default: whatever the JSON is. `codec`: "json",
    "bytes", "msgpack" or "protobuf". Default: bytes for `bytes`, protobuf for messages, otherwise JSON.

    Raises `TypeError` with what to change.
    """
    return TableDeclaration(codec_of(kind, codec))


def tables_of(target: Any, owner: str) -> Mapping[str, TableSpec]:
    """The tables that a class declares, by name. Raises `TypeError` for names that cannot be used."""
    kind: type = target if inspect.isclass(target) else type(target)
    found: dict[str, TableDeclaration[Any]] = {}
    for base in reversed(kind.__mro__):
        for name, attribute in vars(base).items():
            found.pop(name, None)
            if isinstance(attribute, TableDeclaration):
                found[name] = attribute
    check_names(list(found), owner, "table")
    return {name: declaration.spec() for name, declaration in found.items()}


StoredTables = Mapping[str, Mapping[tuple[bytes, ...], bytes]]
"""Values by table and key, as they are stored."""


def stored_tables(tables: Mapping[str, Mapping[Any, Any]], specs: Mapping[str, TableSpec]) -> StoredTables:
    """Tables as objects by key, for tests. Raises `BadOutput` for an object that is not of the table's type."""
    return {
        name: {
            _parts(key): value if isinstance(value, bytes) else _spec_of(name, specs).write(value)
            for key, value in entries.items()
        }
        for name, entries in tables.items()
    }


def _spec_of(name: str, specs: Mapping[str, TableSpec]) -> TableSpec:
    return specs.get(name) or TableSpec(name, codec_of(Any, "json"))


class LaneTables:
    """The tables of one stream."""

    def __init__(self, specs: Mapping[str, TableSpec]) -> None:
        self._specs = specs
        self.version = 0
        self.by_name: Mapping[str, Table[Any]] = _Tables()
        self._stored: dict[str, dict[tuple[bytes, ...], bytes]] = {}

    def update(self, data: bytes) -> bool:
        """Do what an encoded `TableUpdate` says. Returns whether the tables were of the version that it is for;
        otherwise nothing is changed. Raises `ValueError` for bytes that are not an update."""
        try:
            update = udf_pb2.SealedTableUpdate.FromString(data)
        except DecodeError as error:
            raise ValueError(f"{len(data)} bytes are not an update of a table: {error}") from error
        values = columns.unpack_bytes(update.values)
        keys = columns.unpack_lists(update.keys, len(values))
        if update.base and update.base != self.version:
            return False
        if not update.base:
            self._stored = {}
        if update.table not in self._stored:
            self._stored[update.table] = {}
            self.by_name = _Tables({name: self._view(name) for name in self._stored})
        stored = self._stored[update.table]
        for key, value in zip(keys, values, strict=True):
            if value:
                stored[key] = value
            else:
                stored.pop(key, None)
        self.version = update.version
        return True

    def fill(self, tables: StoredTables) -> None:
        """Have these tables, for tests."""
        self._stored = {name: dict(entries) for name, entries in tables.items()}
        self.by_name = _Tables({name: self._view(name) for name in self._stored})

    def _view(self, name: str) -> Table[Any]:
        return Table(name, _spec_of(name, self._specs).codec.read, self._stored[name])


class _Tables(dict[str, "Table[Any]"]):
    """The tables by name."""

    def __missing__(self, name: str) -> Table[Any]:
        raise KeyError(f"the vertex has no table {name!r} in its `tables`; it has {', '.join(self) or 'none'}")


def _is_key(key: object) -> TypeGuard[Key]:
    return isinstance(key, str) or (isinstance(key, tuple) and all(isinstance(part, str) for part in key))


def _parts(key: Key) -> tuple[bytes, ...]:
    if not _is_key(key):
        raise TypeError(f"a key of a table is a text, or a tuple of texts, as those of records, unlike {key!r:.80}")
    parts = (key,) if isinstance(key, str) else key
    return tuple(part.encode(errors="surrogateescape") for part in parts)


def _key_of(parts: tuple[bytes, ...]) -> Key:
    texts = tuple(part.decode(errors="surrogateescape") for part in parts)
    return texts[0] if len(texts) == 1 else texts
