"""What a kind of vertex is to its author: one object, which says all that Millstream wants to know of it.

Above it: the pipeline file's models, which find it by its key, and `lanes`, which opens lanes of it. Below it: the
kinds, each in a module of its own. It is imported by whatever reads a pipeline, so what lanes work with is imported in
`open_lane`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from millstream.spec.kinds import VertexKind
from millstream.spec.values import SpecModel

if TYPE_CHECKING:
    from millstream_worker.lanes import LaneOpening, VertexLane

S = TypeVar("S", bound=SpecModel)


class RunnableKind(VertexKind[S]):
    """A kind of vertex that a worker can run."""

    @abstractmethod
    async def open_lane(self, settings: S, opening: LaneOpening) -> VertexLane:
        """The lane that `opening` is about, which has been taken over: `opening.core.committer.mark` says how far it
        is. What it needs is opened on `opening.stack`."""
