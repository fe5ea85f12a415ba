"""Protocols between a vertex and its user's programs, found by name; what speaks one is added above.

    PROTOCOLS ─► ProtocolKind: what kinds of functions it has, whether it is encrypted

A protocol is one object, and lives in a folder of its own: `millstream.udf.native`, or a package that others have
written (docs/extending.md). Reading a pipeline imports the module with the object, so that module imports no client
library; what a protocol works with is imported when it is opened (`millstream.udf.protocol`).
"""

from enum import Enum
from typing import Annotated

from millstream import codes
from millstream.errors import UserError
from millstream.nearest import one_of
from millstream.spec.registry import Registry
from millstream.spec.rules import After
from millstream.spec.values import problem

NATIVE = "millstream"
"""The protocol of docs/udf-protocol.md."""


class FunctionKind(Enum):
    """What a function is for; the value is its name in messages."""

    MAP = "map"
    SOURCE_TRANSFORM = "source transform"
    SINK = "sink"
    SOURCE = "source"
    REDUCE = "reduce"


class ProtocolKind:
    """What the pipeline file needs to know of a protocol."""

    serves: frozenset[FunctionKind] = frozenset()
    """The kinds of functions that it has."""

    encrypts = False
    """Whether a connection can be encrypted (`tls`)."""


PROTOCOLS: Registry[ProtocolKind] = Registry(
    "millstream.udf_protocols", "UDF protocol", ProtocolKind, {NATIVE: "millstream.udf.native.protocol:NATIVE"}
)
"""All protocols."""


def _known(name: str) -> str:
    remedy = one_of(name, PROTOCOLS.names)
    if name not in PROTOCOLS:
        raise problem(codes.NOT_ALLOWED, f"there is no UDF protocol `{name}`", remedy)
    try:
        PROTOCOLS.load(name)
    except UserError as error:
        raise problem(codes.EXTENSION, str(error), "a package that works with this version of Millstream") from error
    return name


ProtocolName = Annotated[str, After(_known)]
