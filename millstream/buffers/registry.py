"""Finds a technology by its key: ours are folders beside this file, others are registered in an entry point group.

Above it: code that opens the data of a pipeline. It imports a technology only when it is needed, because its client
library may not be installed.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from millstream import codes
from millstream.errors import UserError
from millstream.nearest import did_you_mean
from millstream.plan.plan import plan_of
from millstream.spec.buffers import BUILT_IN, GROUP, known, with_technology
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline

if TYPE_CHECKING:
    from millstream.buffers.technology import Technology
    from millstream.spec.loading import Loaded


def technology(key: str) -> Technology:
    """The technology with that key. Raises `UserError` if there is none, or if a package that it needs is not
    installed."""
    try:
        if key in BUILT_IN:
            found: Technology = import_module(f"millstream.buffers.{key}.technology").TECHNOLOGY
            return found
        from importlib.metadata import entry_points

        for point in entry_points(group=GROUP, name=key):
            loaded: Technology = point.load()
            return loaded
    except ModuleNotFoundError as error:
        raise UserError(
            codes.EXTRA_NEEDED,
            f"ledgers in {key} need the package {error.name}, which is not installed here: "
            f"`pip install 'millstream[{key}]'`",
        ) from error
    what = f"there is no ledger technology {key!r}; there are: {', '.join(known())}{did_you_mean(key, known())}"
    raise UserError(codes.EXTENSION, what)


def technology_of(pipeline: Pipeline) -> Technology:
    """The technology of a pipeline."""
    return technology(pipeline.spec.buffer_technology)


def over(loaded: Loaded, key: str) -> Loaded:
    """The same pipeline with the technology of that key. Raises `UserError` if there is none."""
    written = with_technology(loaded.pipeline.spec.inter_step_buffer, technology(key).key)
    spec = loaded.pipeline.spec.model_copy(update={"inter_step_buffer": written})
    pipeline = loaded.pipeline.model_copy(update={"spec": spec})
    return replace(loaded, plan=plan_of(Graph.of(pipeline)))
