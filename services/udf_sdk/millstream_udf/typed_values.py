"""Converts the values of records to the types of a function's inputs, and its outputs to values.

Above it: `definition`, which has one `Decoder` and one `Encoder` for a function, and the code that runs it. Below it:
`json_types` and `json_writing`, which decide what fits and explain what does not. msgspec, if it is installed, and
pydantic for its own models do the same faster. Both are imported only when a function has types.

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

from millstream_udf.failures import FAILURES, failure
from millstream_udf.json_types import (
    converter,
    is_msgspec,
    is_pydantic,
    loaded,
    name_of,
    validated,
)
from millstream_udf.misfits import BadOutput, Misfit, shown_bytes
from millstream_udf.values import Message, Record

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]


class Decoder:
    """Decodes values to objects. Created by `decoder`."""

    def __init__(self, kind: Any, fast: Decode | None, explain: Decode) -> None:
        """`fast`: the same result for values that fit, and any exception for others. `explain`: explains the latter."""
        self.kind = kind
        self.name = name_of(kind)
        self.fast = fast or explain
        """As `one`, but with any exception for a value that does not fit."""
        self._explain = explain

    def one(self, value: bytes) -> Any:
        """Raises `Misfit`."""
        try:
            return self.fast(value)
        except FAILURES as error:
            raise self._misfit(value, failure(error)) from None

    def many(self, values: Sequence[bytes]) -> tuple[list[Any], dict[int, Misfit]]:
        """An object for each value, None if there is none, and the reasons by index."""
        try:
            return list(map(self.fast, values)), {}
        except FAILURES as error:
            failure(error)
            # The value is searched for only now.
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

    def _misfit(self, value: bytes, error: BaseException) -> Misfit:
        try:
            self._explain(value)
        except Misfit as misfit:
            return misfit.of(self.name)
        except FAILURES as other:
            # From a user's function: there is only its message.
            error = failure(other)
        return Misfit(f"is refused: {type(error).__name__}: {error}"[:1000]).of(self.name)


def decoder(kind: Any) -> Decoder:
    """The decoder for `decode=kind`: a type, or a function that takes bytes. Raises `TypeError` if values cannot be
    decoded to it."""
    if kind is str:
        return Decoder(str, None, _text)
    if _is_function(kind):
        return Decoder(kind, None, kind)
    return json_decoder(kind)


def json_decoder(kind: Any) -> Decoder:
    """The decoder of JSON values of a type, also of `str`. Raises `TypeError` as `decoder` does."""
    convert = converter(kind)
    if is_pydantic(kind):
        return Decoder(kind, kind.__pydantic_validator__.validate_json, _pydantic(kind))
    return Decoder(kind, _msgspec(kind), lambda value: convert(loaded(value)))


def _is_function(kind: Any) -> bool:
    """Whether it is a function, or a callable instance of a user's class; callable objects of `typing` are types."""
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


def _pydantic(kind: Any) -> Decode:
    def explain(value: bytes) -> Any:
        # What is not JSON at all has the message that it has with every other type.
        loaded(value)
        return validated(kind, value)

    return explain


def _msgspec(kind: Any) -> Decode | None:
    """msgspec's decoder; None if it is not installed, or does not support the type, such as a union of two
    dataclasses."""
    try:
        import msgspec
    except ImportError:
        return None

    def foreign(wanted: type, value: Any) -> Any:
        return converter(wanted)(value)

    try:
        return msgspec.json.Decoder(kind, dec_hook=foreign).decode
    except TypeError:
        return None


class Encoder:
    """Encodes objects to values. Created by `encoder`."""

    def __init__(self, own: Encode | None) -> None:
        """`own`: the user's function, for objects that are neither bytes nor text."""
        self._own = own

    def one(self, value: Any) -> bytes:
        """Raises `BadOutput` for an object without an encoding, and what the user's own function raises."""
        if self._own is None:
            if not is_object(type(value)):
                raise BadOutput(
                    "an output becomes JSON if it is a dict, a dataclass or a model, but this is "
                    f"{type(value).__name__}; return json.dumps(value)"
                )
            return written(value)
        encoded: object = self._own(value)
        if not isinstance(encoded, bytes):
            raise BadOutput(f"the function of encode= must return bytes, not {type(encoded).__name__}")
        return encoded

    def many(self, results: Sequence[Any]) -> list[Any]:
        """Results with bytes instead of objects, or with the errors of these."""
        kinds = set(map(type, results))
        if self._own is None and len(kinds) == 1 and is_object(kind := kinds.pop()):
            write = _writer(kind)
            try:
                return list(map(write, results))
            except FAILURES as error:
                failure(error)
                # The object is searched for only now.
                return [self._replaced(result) for result in results]
        return [self._replaced(result) if self.takes(type(result)) else result for result in results]

    def takes(self, kind: type) -> bool:
        """Whether a result of this type is an object to encode."""
        return is_object(kind) if self._own is None else not issubclass(kind, _NEVER_OBJECTS)

    def _replaced(self, result: Any) -> Any:
        try:
            return self.one(result)
        except FAILURES as error:
            return failure(error)


_NEVER_OBJECTS = (
    *(bytes, bytearray, memoryview, str, type(None), BaseException, Message, Record),
    *(list, tuple, set, frozenset, abc.Iterator, abc.AsyncIterator),
)
"""Types of results that are not encoded, and of collections of outputs."""
JSON = Encoder(None)


def encoder(own: Encode | None) -> Encoder:
    """The encoder for `encode=own`; JSON without it. Raises `TypeError`."""
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


def written(value: Any) -> bytes:
    """Any object as JSON. Raises `BadOutput` for one that JSON cannot have, with its place."""
    kind: Any = type(value)
    try:
        return _writer(kind)(value)
    except FAILURES as error:
        failure(error)
        # Our own writer explains the error and its place.
        try:
            return _plain_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadOutput(f"a {kind.__name__} cannot be written as JSON: {error}") from None


@lru_cache(maxsize=1024)
def _writer(kind: Any) -> Encode:
    """The fastest function to write objects of this class."""
    if is_pydantic(kind):
        serializer: Any = kind.__pydantic_serializer__
        return lambda value: serializer.to_json(value, by_alias=True)
    return json_writer()


@lru_cache(maxsize=1)
def json_writer() -> Encode:
    """The fastest function to write objects that are no models of pydantic; what it raises is not for users."""
    try:
        import msgspec
    except ImportError:
        return _plain_json
    from millstream_udf.json_writing import plain

    return msgspec.json.Encoder(enc_hook=plain).encode


def _plain_json(value: Any) -> bytes:
    import json

    from millstream_udf.json_writing import plain

    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
