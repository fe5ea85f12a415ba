"""What a source, a sink or a format needs to have installed, and what of that is missing.

Above it: checks, and whatever opens sources and sinks. Below it: the models, each of which knows what it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from millstream import codes
from millstream.errors import UserError
from millstream.missing_packages import naming_missing_packages
from millstream.spec.model import Needed
from millstream.spec.registry import Choice, models_in


def needed_by(value: object, loc: tuple[str | int, ...] = ()) -> Iterator[Needed]:
    """The modules that a model and the models within it need, each with its place. `loc`: the place of the model."""
    for model, place in models_in(value, loc):
        yield from (one._replace(loc=(*place, *one.loc)) for one in model.needs())


def not_installed(needed: Iterable[Needed]) -> Iterator[Needed]:
    """Those of them that this machine does not have."""
    return (one for one in needed if _is_missing(one.module))


@contextmanager
def naming_needs(end: Choice, place: str) -> Iterator[None]:
    """Within it, a package that is not installed is an error of the user's, which names `place`. Raises it at once for
    those that a source or sink says it needs."""
    for one in not_installed(needed_by(end)):
        raise UserError(codes.EXTRA_NEEDED, f"{place} {one.what}: {one.remedy}")
    with naming_missing_packages(place):
        yield


def _is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        # Of the package that it is in.
        return True
