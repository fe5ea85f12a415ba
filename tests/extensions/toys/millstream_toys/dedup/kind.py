"""What Millstream knows of `dedup`; its stage is in `stage`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream.spec.values import PositiveDuration, SpecModel, as_duration, field
from millstream_worker.kind import RunnableKind

if TYPE_CHECKING:
    from millstream_vertex.stage import Stage
    from millstream_worker.opening import StageOpening


class Dedup(SpecModel):
    """Lets a value through if its edge has not brought it to this partition for a while."""

    noun = "a dedup"

    ttl_s: PositiveDuration = field(default=3600.0, alias="ttl")
    """How long a value is remembered. Duration, default 1h."""


class DedupKind(RunnableKind[Dedup]):
    name = "dedup"
    model = Dedup
    meaning = "Makes it a vertex that lets each value through once."
    drawn = ("{{", "}}")

    def contents(self, settings: Dedup) -> str:
        return as_duration(settings.ttl_s)

    def guarantees(self, settings: Dedup) -> Iterator[tuple[str, Guarantee]]:
        what = f"each value once in {as_duration(settings.ttl_s)}: what was seen is committed with what was let through"
        yield "", Guarantee(GuaranteeId.TRANSACTIONAL, what)

    async def open_stage(self, settings: Dedup, opening: StageOpening, *, next_takes_arrow: bool) -> Stage:
        from millstream_toys.dedup.stage import DedupStage

        return DedupStage(settings.ttl_s, opening.shared.clock)


DEDUP = DedupKind()
