"""The interface of a kind of vertex, for its author: one object that has everything Millstream must know about it.

Above it: the pipeline file's models, which find a kind by its key, and `lanes`, which opens its lanes. Below it: the
kinds, each in its own module. Every process that reads a pipeline imports this module, so a kind imports what its
lanes need in `open_lane`, `open_stage` and `open_target`. These are called in a thread (`millstream.importing`); what
they return runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millstream import codes
from millstream.errors import MillstreamError
from millstream.spec.kinds import VertexKind
from millstream.spec.values import SpecModel

if TYPE_CHECKING:
    from millstream_vertex.core import LaneCore
    from millstream_vertex.stage import Stage
    from millstream_vertex.to_sink import ChainSink
    from millstream_worker.opening import LaneOpening, StageOpening, VertexLane

S = TypeVar("S", bound=SpecModel)


class RunnableKind(VertexKind[S]):
    """A kind of vertex that a worker can run."""

    def open_lane(self, settings: S, opening: LaneOpening) -> Coroutine[Any, Any, VertexLane]:
        """Open the lane of `opening`, which has been taken over: `opening.core.committer.mark` is its position. Open
        what the lane needs on `opening.stack`. A kind whose lanes read a buffer and have a stage needs no other one."""
        return opening.stage_lane(partial(self.open_stage, settings, opening))

    def open_stage(self, settings: S, opening: StageOpening, *, next_takes_arrow: bool) -> Coroutine[Any, Any, Stage]:
        """Open the stage of the vertex in a lane: its own, or that of another vertex if it `may_follow_in_chain`.

        `next_takes_arrow`: whether what follows takes frames with Arrow columns in place of values.
        """
        raise MillstreamError(codes.IMPOSSIBLE, f"{opening.where}: a {self.name} has no stage")

    def open_target(self, settings: S, opening: StageOpening, core: LaneCore) -> Coroutine[Any, Any, ChainSink]:
        """Open the target that takes the outputs of another vertex's lane without a buffer, and fence former owners.

        Only kinds without output that `may_follow_in_chain` have one. `core`: the core of that lane.
        """
        raise MillstreamError(codes.IMPOSSIBLE, f"{opening.where}: a {self.name} cannot be the end of a chain")
