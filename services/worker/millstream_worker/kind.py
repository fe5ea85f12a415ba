"""The interface of a kind of vertex, for its author: one object that has everything Millstream must know about it.

Above it: the pipeline file's models, which find a kind by its key, and `lanes`, which opens its lanes. Below it: the
kinds, each in its own module. Every process that reads a pipeline imports this module, so a kind imports what its
lanes need in `open_lane`, `open_step` and `open_target`. These are called in a thread (`millstream.importing`); what
they return runs on the event loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from millstream import codes
from millstream.errors import MillstreamError
from millstream.spec.kinds import VertexKind
from millstream.spec.values import SpecModel

if TYPE_CHECKING:
    from millstream_vertex.lane import LaneCore
    from millstream_vertex.map_step import MapStep, Outlet
    from millstream_vertex.to_sink import Target
    from millstream_worker.opening import LaneOpening, StepOpening, VertexLane

S = TypeVar("S", bound=SpecModel)


class RunnableKind(VertexKind[S]):
    """A kind of vertex that a worker can run."""

    @abstractmethod
    def open_lane(self, settings: S, opening: LaneOpening) -> Coroutine[Any, Any, VertexLane]:
        """Open the lane of `opening`, which has been taken over: `opening.core.committer.mark` is its position. Open
        what the lane needs on `opening.stack`."""

    def open_step(self, settings: S, opening: StepOpening, outlet: Outlet, number: int) -> Coroutine[Any, Any, MapStep]:
        """Open the step that processes frames in the lane of another vertex; only for kinds that `may_follow_in_chain`.

        `outlet`: the destination of its outputs; `number`: its place in the chain, from 0.
        """
        raise MillstreamError(codes.IMPOSSIBLE, f"{opening.where}: a {self.name} cannot follow in a chain")

    def open_target(self, settings: S, opening: StepOpening, core: LaneCore) -> Coroutine[Any, Any, Target]:
        """Open the target that takes the outputs of another vertex's lane without a buffer, and fence former owners.

        Only kinds without output that `may_follow_in_chain` have one. `core`: the core of that lane.
        """
        raise MillstreamError(codes.IMPOSSIBLE, f"{opening.where}: a {self.name} cannot be the end of a chain")
