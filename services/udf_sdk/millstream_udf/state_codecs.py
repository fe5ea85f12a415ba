"""How values of states are stored: as bytes of a codec, and as objects of the type that a state declares.

Above it: `state_specs`. Below it: `typed_values`, which decodes JSON to types. A stored value is read by whatever
version of the function comes next, so a codec writes nothing that it could not read again. There is no pickle: its
bytes belong to the classes of one version, and run code when they are read.

    codec       bytes of a value
    json        JSON of the type: as the values of records
    bytes       the value itself
    msgpack     MessagePack of the type; needs msgspec
    protobuf    a message
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context as DecimalContext
from decimal import Decimal
from functools import partial
from json.encoder import encode_basestring
from typing import Any
from uuid import UUID

from google.protobuf.message import Message as ProtobufMessage

from millstream_udf.failures import FAILURES, failure
from millstream_udf.json_types import UnsupportedType, converter, is_msgspec, is_pydantic, name_of
from millstream_udf.json_writing import plain
from millstream_udf.misfits import BadOutput
from millstream_udf.typed_values import json_decoder, json_writer, written

Read = Callable[[bytes], Any]
Write = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Codec:
    """Values of one type as bytes."""

    name: str
    """One of: json, bytes, msgpack, protobuf."""
    kind: Any
    """The type; `Any` for whatever the codec can write."""
    read: Read
    """Raises any exception for bytes that are not a value of the type."""
    write: Write
    """Raises `BadOutput`, or any exception, for a value that has no encoding."""
    read_plain: Read
    """As `read`, without the type: for values of older versions."""
    fast_read: Read | None
    """As `read`, perhaps with another exception; None: the bytes are the value."""
    fast_write: Write
    """As `write`, perhaps with another exception, and perhaps with bytes that cannot be read again."""
    exact: Any = None
    """A class all of whose instances can be read again once they are written; None if there is none."""

    def checked(self, value: Any) -> bytes:
        """The bytes of a value that can be read again. Raises `BadOutput`."""
        data = self.written(value)
        self.check(value, data)
        return data

    def written(self, value: Any) -> bytes:
        """The bytes of a value. Raises `BadOutput`."""
        try:
            return self.write(value)
        except BadOutput:
            raise
        except FAILURES as error:
            raise BadOutput(
                f"a {type(value).__name__} cannot be stored as {self.name} of {name_of(self.kind)}: {failure(error)}"
            ) from None

    def check(self, value: Any, data: bytes) -> None:
        """Raises `BadOutput` if a value could not be read again from its bytes."""
        if type(value) is self.exact or self.kind is Any:
            return
        what = f"a {type(value).__name__} is not what the state stores ({name_of(self.kind)})"
        try:
            found = self.read(data)
        except FAILURES as error:
            raise BadOutput(f"{what}: {failure(error)}") from None
        # Such as bytes, of which JSON makes a text, or a whole number that is too large for a float.
        if self.kind in SCALARS and found != value:
            raise BadOutput(f"{what}: it would be read again as {found!r:.80}")


def codec_of(kind: Any, name: str | None = None) -> Codec:
    """The codec `name` for values of a type; by default the one that goes with the type. Raises `TypeError`."""
    if name is None:
        name = "bytes" if kind is bytes else "protobuf" if _is_protobuf(kind) else "json"
    try:
        make = _CODECS[name]
    except KeyError:
        raise TypeError(f"codec={name!r} is not one of {', '.join(_CODECS)}") from None
    try:
        return make(kind)
    except UnsupportedType as error:
        raise TypeError(f"{name_of(kind)} cannot be stored as {name}: {error}") from None


def item_codec_of(kind: Any) -> Codec:
    """The codec for the items of a map: bytes as they are, everything else as JSON. Raises `TypeError`."""
    if kind is bytes:
        return codec_of(bytes)
    codec = codec_of(kind, "json")
    # Two encodings of one item would be two items. So there is one writer for them, whatever is installed.
    if kind is str:
        return dataclasses.replace(codec, write=_write_text, fast_write=_write_text)
    write: Write = _write_item
    if kind is not int and kind is not Any:
        # What a number as a `Decimal`, or a list as a tuple, would be written as.
        write = partial(_write_as_read, codec.read)
    return dataclasses.replace(codec, write=write, fast_write=write, exact=None)


def never_changes(value: Any) -> bool:
    """Whether an object cannot be changed in place, so that it need not be compared after it was read."""
    kind = type(value)
    if kind in SCALARS or isinstance(value, enum.Enum):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(never_changes, value))
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # not in typeshed
        return all(never_changes(getattr(value, field.name, None)) for field in dataclasses.fields(kind))
    return False


SCALARS = frozenset({
    int, float, bool, str, bytes, type(None), Decimal, UUID, datetime, date, time, timedelta,
})  # fmt: skip


def _bytes(kind: Any) -> Codec:
    if kind is not bytes and kind is not Any:
        raise TypeError(f"codec='bytes' is for bytes, not {name_of(kind)}")
    return Codec("bytes", bytes, _same, _write_bytes, _same, None, _write_bytes, bytes)


def _json(kind: Any) -> Codec:
    exact = kind if kind in (str, int, bool) else None
    decoder = json_decoder(kind)
    fast_write: Write = _write_json
    # With these, an object of another type is noticed when it is read again.
    if kind in (str, int, bool):
        fast_write = json_writer()
    elif kind in (dict, list) or dataclasses.is_dataclass(kind) or is_msgspec(kind):
        fast_write = _write_finite
    return Codec("json", kind, decoder.one, _write_json, json_decoder(Any).one, decoder.fast, fast_write, exact)


def _msgpack(kind: Any) -> Codec:
    try:
        import msgspec
    except ImportError:
        raise TypeError(
            "codec='msgpack' needs msgspec where the function runs: pip install millstream-udf[typed]"
        ) from None
    converter(kind)

    def foreign(wanted: Any, value: Any) -> Any:
        return converter(wanted)(value)

    try:
        reader = msgspec.msgpack.Decoder(kind, dec_hook=foreign)
    except TypeError as error:
        raise TypeError(f"{name_of(kind)} cannot be stored as msgpack: {error}") from None
    encoder = msgspec.msgpack.Encoder(enc_hook=plain)
    return Codec("msgpack", kind, reader.decode, encoder.encode, msgspec.msgpack.decode, reader.decode, encoder.encode)


def _protobuf(kind: Any) -> Codec:
    if not _is_protobuf(kind):
        raise TypeError(f"codec='protobuf' is for classes of protobuf messages, not {name_of(kind)}")

    def write(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise BadOutput(f"a {type(value).__name__} is not what the state stores ({name_of(kind)})")
        # Otherwise the same map may become other bytes, which would count as a change.
        data: bytes = value.SerializeToString(deterministic=True)
        return data

    return Codec("protobuf", kind, kind.FromString, write, _same, kind.FromString, write, kind)


_CODECS: dict[str, Callable[[Any], Codec]] = {
    "json": _json,
    "bytes": _bytes,
    "msgpack": _msgpack,
    "protobuf": _protobuf,
}


def _is_protobuf(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ProtobufMessage)


def _same(value: bytes) -> bytes:
    return value


def _write_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise BadOutput(f"a {type(value).__name__} is not what the state stores (bytes)")


def _write_json(value: Any) -> bytes:
    return _checked_finite(value, written(value))


def _write_finite(value: Any) -> bytes:
    return _checked_finite(value, json_writer()(value))


def _checked_finite(value: Any, data: bytes) -> bytes:
    """The JSON of a value. Raises `BadOutput` if it has null in place of a number that is not finite."""
    if b"null" in data and (number := _not_finite(value)) is not None:
        raise BadOutput(f"JSON has no number {number}")
    return data


def _not_finite(value: Any) -> float | None:
    """A number in an object that is not finite; None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    if isinstance(value, Mapping):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    elif is_pydantic(type(value)):
        inside = getattr(value, "__dict__", {}).values()
    else:
        names = getattr(type(value), "__struct_fields__", getattr(type(value), "__dataclass_fields__", ()))
        inside = (getattr(value, name, None) for name in names)
    return next((found for one in inside if (found := _not_finite(one)) is not None), None)


_TEXTS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)


def _write_text(value: Any) -> bytes:
    if type(value) is not str:
        if not isinstance(value, str):
            raise BadOutput(f"an item of the state is a str, not a {type(value).__name__}")
        value = str(value)
    return encode_basestring(value).encode()


def _write_item(value: Any) -> bytes:
    if is_pydantic(type(value)):
        return _write_json(value)
    return _checked_finite(value, _TEXTS.encode(plain(_one_of_equals(value))).encode())


def _write_as_read(read: Read, value: Any) -> bytes:
    return _write_item(read(_write_item(value)))


def _one_of_equals(value: Any) -> Any:
    """The same value for all of a type that are equal, such as `Decimal("1.5")` for `Decimal("1.50")`."""
    if isinstance(value, float):
        # Of two zeros, the positive one.
        return value + 0.0
    if isinstance(value, Decimal) and value.is_finite():
        return value.normalize(DecimalContext(prec=len(value.as_tuple().digits))) if value else Decimal(0)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value
