"""Finds a technology by its key: ours are folders beside this file, others are registered in an entry point group.

Above it: code that opens the data of a pipeline. Below it: the table of technologies. A technology is imported only
when it is needed, because its client library may not be installed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millstream import codes
from millstream.buffers.technology import Technology
from millstream.errors import UserError
from millstream.nearest import did_you_mean
from millstream.plan.plan import plan_of
from millstream.spec.buffers import EXTRAS, TECHNOLOGIES, with_technology
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline

if TYPE_CHECKING:
    from millstream.spec.loading import LoadedPipeline


def technology(key: str) -> Technology:
    """The technology with that key. Raises `UserError` if there is none, or if a package that it needs is not
    installed, or if it is not usable."""
    if key not in TECHNOLOGIES:
        names = TECHNOLOGIES.names
        what = f"there is no ledger technology {key!r}; there are: {', '.join(names)}{did_you_mean(key, names)}"
        raise UserError(codes.EXTENSION, what)
    try:
        found = TECHNOLOGIES.load(key)
    except UserError as error:
        missing = error.__cause__
        if key not in EXTRAS or not isinstance(missing, ModuleNotFoundError):
            raise
        raise UserError(
            codes.EXTRA_NEEDED,
            f"ledgers in {key} need the package {missing.name}, which is not installed here: "
            f"`pip install '{EXTRAS[key]}'`",
        ) from missing
    if not isinstance(found, Technology):
        package = TECHNOLOGIES.package_of(key)
        what = f"the {TECHNOLOGIES.noun} {key} of {package} is not usable: it lacks a member of `Technology`"
        raise UserError(codes.EXTENSION, what)
    return found


def technology_of(pipeline: Pipeline) -> Technology:
    """The technology of a pipeline."""
    return technology(pipeline.spec.buffer_technology)


def over(loaded: LoadedPipeline, key: str) -> LoadedPipeline:
    """The same pipeline with the technology of that key. Raises `UserError` if there is none."""
    written = with_technology(loaded.pipeline.spec.inter_step_buffer, technology(key).key)
    spec = loaded.pipeline.spec.model_copy(update={"inter_step_buffer": written})
    pipeline = loaded.pipeline.model_copy(update={"spec": spec})
    return replace(loaded, plan=plan_of(Graph.of(pipeline)))
