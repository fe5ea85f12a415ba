"""How the values of records become what a function takes, and what it gives becomes values.

Above it: `definition`, which has one `Decoder` and one `Encoder` for a function, and what runs it. Below it:
`json_types` and `json_writing`, which decide what fits and say what does not; msgspec where it is installed, and
pydantic in its own models, do the same faster. Both are imported only when a function has types.

    decode=            a value is                encode=
    str                text, UTF-8               text
    a type             JSON of that type         (not given) JSON
    a function         what it makes of bytes    what it makes of an object
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from millstream_udf.failures import BadOutput
from millstream_udf.json_types import (
    Convert,
    UnsupportedType,
    converter,
    is_msgspec,
    is_pydantic,
    loaded,
    name_of,
    pydantic_misfit,
)
from millstream_udf.misfits import Misfit, shown_bytes
from millstream_udf.values import Message, Record

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]


class Decoder:
    """Makes objects of values. Made by `decoder`."""

    def __init__(self, kind: Any, fast: Decode | None, explain: Decode) -> None:
        """`fast`: makes the same of values that fit, and raises anything for others. `explain`: says of these why."""
        self.kind = kind
        self.name = name_of(kind)
        self._fast = fast or explain
        self._explain = explain

    def one(self, value: bytes) -> Any:
        """Raises `Misfit`."""
        try:
            return self._fast(value)
        except Exception as error:  # noqa: BLE001  # the packages below raise what they like, a user's function too
            raise self._misfit(value, error) from None

    def many(self, values: Sequence[bytes]) -> tuple[list[Any], dict[int, Misfit]]:
        """An object for each value, None where there is none, and why there is none, by index."""
        try:
            return list(map(self._fast, values)), {}
        except Exception:  # noqa: BLE001  # as above; which one it was is looked for now
            return self._each(values)

    def _each(self, values: Sequence[bytes]) -> tuple[list[Any], dict[int, Misfit]]:
        objects: list[Any] = []
        misfits: dict[int, Misfit] = {}
        for index, value in enumerate(values):
            try:
                objects.append(self.one(value))
            except Misfit as misfit:
                objects.append(None)
                misfits[index] = misfit
        return objects, misfits

    def _misfit(self, value: bytes, error: Exception) -> Misfit:
        try:
            self._explain(value)
        except Misfit as misfit:
            return misfit.of(self.name)
        except Exception as other:  # noqa: BLE001  # of a user's function: its message is all there is
            error = other
        return Misfit(f"is refused: {type(error).__name__}: {error}"[:1000]).of(self.name)


def decoder(kind: Any) -> Decoder:
    """For `decode=kind`: a type, or a function that takes bytes. Raises `TypeError` where values cannot be that."""
    if kind is str:
        return Decoder(str, None, _text)
    if _is_function(kind):
        return Decoder(kind, None, kind)
    convert = converter(kind)
    explain = _explaining(convert)
    if is_pydantic(kind):
        return Decoder(kind, kind.__pydantic_validator__.validate_json, _pydantic(kind))
    return Decoder(kind, _msgspec(kind), explain)


def _is_function(kind: Any) -> bool:
    """Also an instance of a user's class that can be called; those of `typing` can be as well, and are types."""
    return inspect.isroutine(kind) or (
        callable(kind)
        and not isinstance(kind, type)
        and type(kind).__module__ not in ("typing", "types", "builtins", "typing_extensions")
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Misfit(f"is not UTF-8 from byte {error.start} on: {shown_bytes(value, error.start)}") from None


def _explaining(convert: Convert) -> Decode:
    return lambda value: convert(loaded(value))


def _pydantic(kind: Any) -> Decode:
    def explain(value: bytes) -> Any:
        loaded(value)
        try:
            return kind.__pydantic_validator__.validate_json(value)
        except ValueError as error:
            raise pydantic_misfit(error) from None

    return explain


def _msgspec(kind: Any) -> Decode | None:
    """None where it is not installed, or does not know such a type: a union of two dataclasses, say."""
    try:
        import msgspec
    except ImportError:
        return None

    def foreign(wanted: type, value: Any) -> Any:
        return converter(wanted)(value)

    try:
        decode: Decode = msgspec.json.Decoder(kind, dec_hook=foreign).decode
    except TypeError:
        return None
    return decode


class Encoder:
    """Makes values of objects. Made by `encoder`."""

    def __init__(self, own: Encode | None) -> None:
        """`own`: the user's function, for all that is not bytes or text."""
        self._own = own

    def one(self, value: Any) -> bytes:
        """Raises `BadOutput` for what has no encoding, and what the user's own function raises."""
        if self._own is None:
            if not is_object(type(value)):
                raise BadOutput(_no_object(value))
            return _written(value)
        encoded: object = self._own(value)
        if not isinstance(encoded, bytes):
            raise BadOutput(f"the function of encode= must return bytes, not {type(encoded).__name__}")
        return encoded

    def many(self, results: Sequence[Any]) -> list[Any]:
        """Results with bytes in place of the objects among them, or what is wrong with these."""
        kinds = set(map(type, results))
        if self._own is None and len(kinds) == 1 and is_object(kind := kinds.pop()):
            write = _writer(kind)
            try:
                return list(map(write, results))
            except Exception:  # noqa: BLE001  # which one it was is looked for now
                return [self._replaced(result) for result in results]
        return [self._replaced(result) if self.takes(type(result)) else result for result in results]

    def takes(self, kind: type) -> bool:
        """Whether a result of this type is an object to encode."""
        return is_object(kind) if self._own is None else not issubclass(kind, _NEVER_OBJECTS)

    def _replaced(self, result: Any) -> Any:
        try:
            return self.one(result)
        except Exception as error:  # noqa: BLE001  # the failure of its record
            return error


_NEVER_OBJECTS = (
    *(bytes, bytearray, memoryview, str, type(None), BaseException, Message, Record),
    *(list, tuple, set, frozenset, abc.Iterator, abc.AsyncIterator),
)
"""Of what a function gives: what stands for itself, and what holds several outputs."""
JSON = Encoder(None)


def encoder(own: Encode | None) -> Encoder:
    """For `encode=own`; JSON without it. Raises `TypeError`."""
    if own is None:
        return JSON
    if not callable(own):
        raise TypeError(f"encode= must be a function from an object to bytes, not {type(own).__name__}")
    return Encoder(own)


def is_object(kind: Any) -> bool:
    """Whether instances of this class are written as a JSON object: dictionaries, dataclasses, models."""
    return _is_object(kind)


@lru_cache(maxsize=1024)
def _is_object(kind: Any) -> bool:
    return issubclass(kind, abc.Mapping) or dataclasses.is_dataclass(kind) or is_pydantic(kind) or is_msgspec(kind)


def _no_object(value: Any) -> str:
    kind = type(value).__name__
    return (
        f"an output becomes JSON if it is a dict, a dataclass or a model, but this is {kind}; return json.dumps(value)"
    )


def _written(value: Any) -> bytes:
    kind: Any = type(value)
    try:
        return _writer(kind)(value)
    except Exception:  # noqa: BLE001  # our own writer says what is wrong, and where
        try:
            return _plain_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadOutput(f"a {kind.__name__} cannot be written as JSON: {error}") from None


@lru_cache(maxsize=1024)
def _writer(kind: Any) -> Encode:
    """The fastest way to write objects of this class."""
    if is_pydantic(kind):
        serializer: Any = kind.__pydantic_serializer__
        return lambda value: serializer.to_json(value, by_alias=True)
    try:
        import msgspec
    except ImportError:
        return _plain_json
    from millstream_udf.json_writing import plain

    encode: Encode = msgspec.json.Encoder(enc_hook=plain).encode
    return encode


def _plain_json(value: Any) -> bytes:
    import json

    from millstream_udf.json_writing import plain

    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def supported(kind: Any) -> None:
    """Raises `UnsupportedType` where objects annotated so cannot be written as JSON."""
    converter(kind)


__all__ = ["JSON", "Decoder", "Encoder", "UnsupportedType", "decoder", "encoder", "is_object", "supported"]
