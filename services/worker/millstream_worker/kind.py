"""What a kind of vertex is to its author: one object, which says all that Millstream wants to know of it.

Above it: the pipeline file's models, which find it by its key, and `lanes`, which opens lanes of it. Below it: the
kinds, each in a module of its own. It is imported by whatever reads a pipeline, so what lanes work with is imported in
`open_lane`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from millstream import codes
from millstream.errors import MillstreamError
from millstream.spec.kinds import VertexKind
from millstream.spec.values import SpecModel

if TYPE_CHECKING:
    from millstream_vertex.lane import LaneCore
    from millstream_vertex.map_step import MapStep, Outlet
    from millstream_vertex.to_sink import Target
    from millstream_worker.lanes import LaneOpening, StepOpening, VertexLane

S = TypeVar("S", bound=SpecModel)


class RunnableKind(VertexKind[S]):
    """A kind of vertex that a worker can run."""

    @abstractmethod
    async def open_lane(self, settings: S, opening: LaneOpening) -> VertexLane:
        """The lane that `opening` is about, which has been taken over: `opening.core.committer.mark` says how far it
        is. What it needs is opened on `opening.stack`."""

    async def open_step(self, settings: S, opening: StepOpening, outlet: Outlet, number: int) -> MapStep:
        """What a vertex of this kind does to a frame in the lane of another; only of kinds that `may_follow_in_chain`.
        `outlet`: where its outputs go; `number`: its place in the chain, from 0."""
        raise MillstreamError(codes.IMPOSSIBLE, f"{opening.where}: a {self.name} cannot follow in a chain")

    async def open_target(self, settings: S, opening: StepOpening, core: LaneCore) -> Target:
        """Where the outputs of the lane of another vertex go without a buffer, with all former owners fenced; only of
        kinds without output that `may_follow_in_chain`. `core`: of that lane."""
        raise MillstreamError(codes.IMPOSSIBLE, f"{opening.where}: a {self.name} cannot be the end of a chain")
