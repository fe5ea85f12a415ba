"""What keeps a pipeline's records between its steps. Owns the names in `spec.interStepBuffer`.

Above it: the spec, and the registry that opens the technologies.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from millstream import codes
from millstream.compression import Compression
from millstream.nearest import one_of
from millstream.spec.registry import Registry
from millstream.spec.values import After, problem

DEFAULT = "jetstream"
TECHNOLOGIES: Registry[object] = Registry(
    "millstream.buffers",
    "buffer technology",
    object,
    {
        DEFAULT: "millstream.buffers.jetstream.technology:TECHNOLOGY",
        "redis": "millstream.buffers.redis.technology:TECHNOLOGY",
    },
)
"""All technologies. `millstream.buffers.registry` says what their objects are."""
EXTRAS: Mapping[str, str] = {"redis": "millstream[redis]"}
"""What pip has to install for a technology of Millstream, beyond Millstream itself."""

COMPRESSION = "compression"
"""The key beside that of the technology."""
_TYPE = "type"


def _checked(written: Mapping[str, Any]) -> Mapping[str, Any]:
    technologies = [key for key in written if key != COMPRESSION]
    if len(technologies) > 1 or not written:
        what = f"`interStepBuffer` names {len(technologies)} technologies"
        listed = ", ".join(f"`{key}: {{}}`" for key in TECHNOLOGIES.names)
        raise problem(codes.FIELDS_CONFLICT, what, f"one of {listed}")
    for key in technologies:
        TECHNOLOGIES.checked(key, COMPRESSION)
        if written[key]:
            raise problem(codes.UNKNOWN_FIELD, f"`{key}` has no settings here", f"`{key}: {{}}`")
    if COMPRESSION in written:
        return {**written, COMPRESSION: {_TYPE: _compression_type(written[COMPRESSION])}}
    return written


def _compression_type(written: Mapping[str, str]) -> str:
    """The name of a compression, in small letters."""
    if list(written) != [_TYPE]:
        raise problem(codes.UNKNOWN_FIELD, f"`{COMPRESSION}` has one field, `{_TYPE}`", f"`{{{_TYPE}: lz4}}`")
    name = written[_TYPE].lower()
    if name not in list(Compression):
        raise problem(codes.NOT_ALLOWED, f"there is no compression `{written[_TYPE]}`", one_of(name, list(Compression)))
    return name


def technology_in(written: Mapping[str, Any] | None) -> str:
    """The name of the technology in a valid `interStepBuffer`."""
    return next((key for key in written or () if key != COMPRESSION), DEFAULT)


def compression_in(written: Mapping[str, Any] | None) -> Compression:
    """The compression in a valid `interStepBuffer`. By default LZ4: it leaves half the bytes or less of most
    records, for about as much time as the broker then needs less."""
    if written is None or COMPRESSION not in written:
        return Compression.LZ4
    return Compression(written[COMPRESSION][_TYPE])


def with_technology(written: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """The same with another technology."""
    kept = {name: value for name, value in (written or {}).items() if name == COMPRESSION}
    return {key: {}, **kept}


InterStepBuffer = Annotated[Mapping[str, Mapping[str, str]], After(_checked)]
"""At most one technology, with its settings, and `compression`."""
