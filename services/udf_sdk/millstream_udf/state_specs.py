"""What a function declares of a state: its name and kind, how its values are stored, when they expire.

Above it: `states`, where users declare them, and `key_states`, which has their entries. Below it: `state_codecs`.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from millstream_udf.failures import FAILURES, failure
from millstream_udf.misfits import BadOutput
from millstream_udf.state_codecs import SCALARS, Codec
from millstream_udf.wire.udf.v1 import udf_pb2

VALUE, MAP = udf_pb2.State.KIND_VALUE, udf_pb2.State.KIND_MAP
LIST, COUNTER = udf_pb2.State.KIND_LIST, udf_pb2.State.KIND_COUNTER
TIMER = udf_pb2.State.KIND_TIMER
KIND_NAMES = {VALUE: "value", MAP: "map", LIST: "list", COUNTER: "counter", TIMER: "timer"}
TIMERS_NAME = "timers"
"""The state with the timers of a function, which is the last one."""
STATES_MAX = 255
"""Most states of a function: their indexes are bytes."""

Clock = Literal["event", "processing"]
Migrations = Mapping[int, Callable[[Any], Any]]

_CLOCKS = {"event": udf_pb2.State.CLOCK_EVENT_TIME, "processing": udf_pb2.State.CLOCK_PROCESSING_TIME}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_METHODS = frozenset(("process", "setup", "close", "on_timer"))
"""Names that have a meaning of their own in a class."""
_MICROSECOND = timedelta(microseconds=1)


class StateError(RuntimeError):
    """A state cannot be used: no record is processed, or its stored value cannot be read."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When entries expire."""

    ttl_us: int = 0
    """Microseconds after the record that wrote last; 0: never."""
    clock: Clock = "event"
    """Whether its event time counts, or the time at which it was processed."""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One state. The errors of its methods name it."""

    name: str
    kind: udf_pb2.State.Kind.ValueType
    codec: Codec | None = None
    """Of its values; None for a counter."""
    item_codec: Codec | None = None
    """Of the items of a map."""
    version: int = 1
    migrate: Migrations = field(default_factory=dict)
    """By version, the function that makes the next version's value of one."""
    lifetime: Lifetime = Lifetime()
    default: Any = None
    """Of a value that is not stored: an object that is copied, or a class or function that makes it; None: there is
    none."""
    items_max: int = 0
    """Of a list; 0: as many as there are."""
    lazy: bool = False
    """Whether its entries are read while a call is in progress, and do not come with it."""

    @property
    def oldest_version(self) -> int:
        """The lowest version of a value that the function can read."""
        return min(self.migrate, default=self.version)

    def message(self) -> udf_pb2.State:
        """The state in `Welcome`."""
        return udf_pb2.State(
            name=self.name,
            kind=self.kind,
            codec=self.codec.name if self.codec is not None else "",
            item_codec=self.item_codec.name if self.item_codec is not None else "",
            version=self.version,
            clock=_CLOCKS[self.lifetime.clock],
            oldest_version=self.oldest_version,
            lazy=self.lazy,
        )

    def report(self) -> dict[str, Any]:
        """The state in the report for `millstream validate`."""
        message = self.message()
        return {
            "name": self.name,
            "kind": KIND_NAMES[self.kind],
            "codec": message.codec,
            "item_codec": message.item_codec,
            "version": self.version,
            "clock": self.lifetime.clock,
            **({"lazy": True} if self.lazy else {}),
        }

    def fresh_default(self) -> Any:
        """The default, for one key."""
        default = self.default
        if type(default) in SCALARS:
            return default
        return default() if _makes(default) else copy.deepcopy(default)

    def read(self, data: bytes, version: int) -> Any:
        """The value of an entry. Raises `StateError`."""
        assert self.codec is not None
        try:
            if version == self.version:
                return self.codec.read(data)
            return self._migrated(self.codec, data, version)
        except StateError:
            raise
        except FAILURES as error:
            raise StateError(f"a stored value of state {self.name} cannot be read: {failure(error)}") from error

    def check_version(self, version: int) -> None:
        """Raises `StateError` for a version of an entry that the function does not know."""
        if version > self.version:
            raise StateError(
                f"state {self.name} has values of version {version}, and this function knows {self.version}: run the "
                "function that wrote them, or a newer one"
            )
        if version < self.oldest_version:
            raise StateError(
                f"state {self.name} has values of version {version}, and this function reads version "
                f"{self.oldest_version} and later ones: add a step to migrate, such as migrate={{{version}: convert}}"
            )

    def _migrated(self, codec: Codec, data: bytes, version: int) -> Any:
        self.check_version(version)
        value = codec.read_plain(data)
        for number in range(version, self.version):
            value = self.migrate[number](value)
        # The last step may make an object, or what the codec reads: either becomes what a stored value would be.
        if codec.name in ("bytes", "protobuf") and isinstance(value, bytes):
            return codec.read(value)
        return codec.read(codec.written(value))

    def write(self, value: Any) -> bytes:
        """The bytes of a value, which can be read again. Raises `BadOutput`."""
        assert self.codec is not None
        try:
            return self.codec.checked(value)
        except BadOutput as error:
            raise BadOutput(f"state {self.name}: {error}") from None

    def write_item(self, item: Any) -> bytes:
        """The bytes of an item of a map. Raises `TypeError`, in users' code, whose traceback is of use."""
        assert self.item_codec is not None
        try:
            return self.item_codec.checked(item)
        except BadOutput as error:
            raise TypeError(f"state {self.name}: {error}") from None

    def read_item(self, data: bytes) -> Any:
        """The inverse of `write_item`. Raises `StateError`."""
        assert self.item_codec is not None
        try:
            return self.item_codec.read(data)
        except FAILURES as error:
            raise StateError(f"a stored item of state {self.name} cannot be read: {failure(error)}") from error


def lifetime_of(ttl: timedelta | None, clock: Clock) -> Lifetime:
    """Raises `TypeError` with what to change."""
    if clock not in ("event", "processing"):
        raise TypeError(f"clock={clock!r} must be 'event' or 'processing'")
    if ttl is None:
        return Lifetime(0, clock)
    if not isinstance(ttl, timedelta):
        raise TypeError(f"ttl must be a timedelta, such as timedelta(days=7), not {ttl!r}")
    if ttl < _MICROSECOND:
        raise TypeError(f"ttl must be longer than nothing, not {ttl}")
    return Lifetime(ttl // _MICROSECOND, clock)


def migrations_of(version: int, migrate: Migrations | None) -> Migrations:
    """Raises `TypeError` with what to change."""
    if type(version) is not int or not 1 <= version < 2**32:
        raise TypeError(f"version must be a whole number of at least 1, not {version!r}")
    steps = dict(sorted(migrate.items())) if migrate else {}
    for number, step in steps.items():
        if not callable(step):
            raise TypeError(f"the step from version {number} in migrate must be a function, not {type(step).__name__}")
    if list(steps) != list(range(version - len(steps), version)) or any(number < 1 for number in steps):
        raise TypeError(
            f"migrate has steps from version {', '.join(map(str, steps))}; version {version} needs them from one "
            f"version to the next, the last one from {version - 1}"
        )
    return steps


def check_names(names: list[str], owner: str, what: str) -> None:
    """Raises `TypeError` for names that the attributes of a class for `what` cannot have, or too many of them."""
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise TypeError(
                f"{owner}: the name of {what} {name} must have at most 63 letters (A to Z), digits and _, and "
                "begin with no digit"
            )
        if name in _METHODS:
            raise TypeError(f"{owner}: no {what} can be called {name}, which is the name of a method")
    if len(names) > STATES_MAX:
        raise TypeError(
            f"{owner} has {len(names)} {what}s; {STATES_MAX} are the most: use a map state for some of them"
        )


def _makes(default: Any) -> bool:
    return inspect.isclass(default) or inspect.isroutine(default)
