"""What Millstream knows of `dedup`; its lanes are in `lane`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount
from millstream.spec.values import PositiveDuration, SpecModel, as_duration, field
from millstream_worker.kind import RunnableKind

if TYPE_CHECKING:
    from millstream_worker.opening import LaneOpening, VertexLane


class Dedup(SpecModel):
    """Lets a value through if its edge has not brought it to this partition for a while."""

    noun = "a dedup"

    ttl_s: PositiveDuration = field(default=3600.0, alias="ttl")
    """How long a value is remembered. Duration, default 1h."""
    values_max: IdsCount = 1_000_000
    """How many values are remembered, all partitions together. When it is so many, the vertex waits."""


class DedupKind(RunnableKind[Dedup]):
    name = "dedup"
    model = Dedup
    meaning = "Makes it a vertex that lets each value through once."
    drawn = ("{{", "}}")

    def contents(self, settings: Dedup) -> str:
        return as_duration(settings.ttl_s)

    def id_bounds(self, settings: Dedup) -> IdBounds:
        return IdBounds(settings.ttl_s, settings.values_max)

    def guarantees(self, settings: Dedup) -> Iterator[tuple[str, Guarantee]]:
        what = f"each value once in {as_duration(settings.ttl_s)}: what was seen is committed with what was let through"
        yield "", Guarantee(GuaranteeId.TRANSACTIONAL, what)

    async def open_lane(self, settings: Dedup, opening: LaneOpening) -> VertexLane:
        from millstream_toys.dedup.lane import DedupLane

        seen = await opening.seen_ids()
        assert seen is not None, "the kind has bounds of ids"
        return DedupLane(await opening.buffer_lane(), opening.router, seen)


DEDUP = DedupKind()
