"""The technology that keeps a pipeline's records between its steps. Owns the names in `spec.interStepBuffer`.

Above it: the spec, and the registry that opens the technologies.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from millstream import codes
from millstream.nearest import one_of
from millstream.spec.rules import After
from millstream.spec.values import problem

BUILT_IN = ("jetstream", "redis")
DEFAULT = "jetstream"
GROUP = "millstream.buffers"
"""Entry points of other technologies."""


def known() -> list[str]:
    """The name of each technology."""
    from importlib.metadata import entry_points

    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def _one_known(written: Mapping[str, Any]) -> Mapping[str, Any]:
    listed = ", ".join(f"`{key}: {{}}`" for key in known())
    if len(written) != 1:
        raise problem(codes.FIELDS_CONFLICT, f"`interStepBuffer` names {len(written)} technologies", f"one of {listed}")
    key = next(iter(written))
    if key not in known():
        raise problem(codes.NOT_ALLOWED, f"there is no buffer technology `{key}`", one_of(key, known()))
    if key in BUILT_IN and written[key]:
        raise problem(codes.UNKNOWN_FIELD, f"`{key}` has no settings here", f"`{key}: {{}}`")
    return written


InterStepBuffer = Annotated[Mapping[str, Mapping[str, str]], After(_one_known)]
"""One technology, with its settings."""
