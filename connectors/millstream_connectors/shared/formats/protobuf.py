"""Protobuf values as JSON texts, and back, with schemas that are known only at run time. Pure.

Above it: decoder and encoder. Below it: protobuf, which creates classes from descriptors. The JSON is Protobuf's own
mapping, with the field names of the schema. Each schema has its own descriptor pool, because two may define the same
message.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from millstream_connectors.shared.formats.confluent import indexes_read, indexes_written
from millstream_connectors.shared.formats.json_values import value_of
from millstream_connectors.shared.formats.protobuf_numbers import numbers_of
from millstream_connectors.shared.formats.registry import Schema

_OWN = "google/protobuf/"
"""Files that are part of protobuf, which registries do not list as references."""
_MAIN = "the schema.proto"
"""Name of the schema's file; registries do not store one."""


def parsed(schema: Schema) -> FileDescriptor:
    """The messages of a schema. Raises `ValueError` for a schema that protobuf does not accept."""
    pool = DescriptorPool()
    added: set[str] = set()
    try:
        for name, text in (*schema.references, (_MAIN, schema.text)):
            file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
            file.name = name
            for dependency in file.dependency:
                _add_own(pool, dependency, added)
            pool.Add(file)
        found: FileDescriptor = pool.FindFileByName(_MAIN)
    except (ValueError, TypeError, KeyError, DecodeError) as error:
        raise ValueError(f"cannot be used: {type(error).__name__}: {error}") from error
    if not found.message_types_by_name:
        raise ValueError("cannot be used: it has no message")
    return found


def _add_own(pool: DescriptorPool, name: str, added: set[str]) -> None:
    """Adds a file that is part of protobuf, after those that it imports."""
    if not name.startswith(_OWN) or name in added:
        return
    added.add(name)
    try:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        raise ValueError(f"it imports {name}, which is not part of protobuf") from None
    file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for dependency in file.dependency:
        _add_own(pool, dependency, added)
    pool.Add(file)


def decoder(file: FileDescriptor) -> Callable[[bytes], bytes]:
    """A function from message indexes and a message to JSON. The function raises `ValueError`."""
    classes: dict[tuple[int, ...], type[Message]] = {}

    def decode(data: bytes) -> bytes:
        indexes, at = indexes_read(data)
        kind = classes.get(indexes)
        if kind is None:
            kind = classes[indexes] = GetMessageClass(_at(file, indexes))
        try:
            text = json_format.MessageToJson(kind.FromString(data[at:]), indent=None, ensure_ascii=False, **_NAMES)
            return text.encode()
        except (DecodeError, json_format.Error, UnicodeError, TypeError, RecursionError) as error:
            raise ValueError(f"the value is not a message {kind.DESCRIPTOR.full_name}: {error}") from error

    return decode


def encoder(file: FileDescriptor, name: str | None) -> Callable[[bytes], bytes]:
    """A function from JSON to message indexes and the message of this name; None: the first message. The function
    raises `ValueError`. So does this one if the schema has no such message."""
    indexes = (0,) if name is None else _named(file, name)
    described = _at(file, indexes)
    kind, numbers = GetMessageClass(described), numbers_of(described)
    head = indexes_written(indexes)
    is_own = file.package == "google.protobuf"

    def encode(value: bytes) -> bytes:
        given = value_of(value)
        if not isinstance(given, dict) and not is_own:
            # An empty array would be parsed as a message without fields.
            raise ValueError(f"the value does not fit the message {kind.DESCRIPTOR.full_name}: it is not an object")
        try:
            return head + json_format.ParseDict(numbers(given), kind()).SerializeToString(deterministic=True)
        except (json_format.Error, EncodeError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"the value does not fit the message {kind.DESCRIPTOR.full_name}: {error}") from error

    return encode


_NAMES: Mapping[str, Any] = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
"""Fields have the names of the schema, and unset ones have their defaults, because keys and event times may be read
from them."""


def _at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor:
    messages = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for index in indexes:
        if index >= len(messages):
            raise ValueError(f"the schema has no message {list(indexes)}")
        found = messages[index]
        messages = list(found.nested_types)
    assert found is not None, "indexes are never empty"
    return found


def _named(file: FileDescriptor, name: str) -> tuple[int, ...]:
    """A message by its name, with or without the package."""
    parts = name.removeprefix(f"{file.package}." if file.package else "").split(".")
    messages = list(file.message_types_by_name.values())
    indexes = []
    for part in parts:
        index = next((index for index, message in enumerate(messages) if message.name == part), None)
        if index is None:
            known = ", ".join(message.full_name for message in file.message_types_by_name.values())
            raise ValueError(f"has no message {name}; it has {known}")
        indexes.append(index)
        messages = list(messages[index].nested_types)
    return tuple(indexes)
