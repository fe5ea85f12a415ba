"""Protocols between a vertex and the user's programs, found by name; their implementation is added above.

    PROTOCOLS ─► ProtocolKind: its kinds of functions, whether it can be encrypted, and whether outputs can be streamed

A protocol is one object in its own folder: `millstream.udf.native`, or a package of a third party (docs/extending.md).
Reading a pipeline imports the module with the object, so that module imports no client library; the modules that a
protocol works with are imported when it is opened (`millstream.udf.protocol`).
"""

from enum import Enum
from typing import Annotated

from millstream.spec.registry import Registry
from millstream.spec.values import After

NATIVE = "millstream"
"""The protocol of docs/udf-protocol.md."""


class FunctionKind(Enum):
    """The purpose of a function; the value is its name in messages."""

    MAP = "map"
    SOURCE_TRANSFORM = "source transform"
    SINK = "sink"
    SOURCE = "source"
    REDUCE = "reduce"


class ProtocolKind:
    """The description of a protocol for the pipeline file."""

    serves: frozenset[FunctionKind] = frozenset()
    """The kinds of functions that it supports."""

    encrypts = False
    """Whether a connection can be encrypted (`tls`)."""

    streams = False
    """Whether a map may send its outputs as it makes them (`streaming`)."""


PROTOCOLS: Registry[ProtocolKind] = Registry(
    "millstream.udf_protocols", "UDF protocol", ProtocolKind, {NATIVE: "millstream.udf.native.protocol:NATIVE"}
)
"""All protocols."""


ProtocolName = Annotated[str, After(PROTOCOLS.checked)]
