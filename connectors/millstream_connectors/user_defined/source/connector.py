"""The `udsource`, as pipeline files name it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated

from millstream import codes
from millstream.errors import MillstreamError
from millstream.limits import IDS_MAX
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount
from millstream.spec.programs import Program
from millstream.spec.protocols import FunctionKind
from millstream.spec.rules import Strict
from millstream.spec.values import PositiveDuration, field
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class UserSource(Program):
    """A source written by the user."""

    noun = "a udsource"
    function = FunctionKind.SOURCE

    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a record is remembered, if the source gives ids. Duration of at least 1s, default 24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of record ids that are remembered, over all partitions; beyond it a lane waits until its oldest
    ids expire."""


class _Udsource(SourceConnector[UserSource]):
    model = UserSource
    meaning = "Records from a user-defined function."
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once if reading from a position gives the same records, or if each record always has the same id",
    )
    ends = "when its function says so"
    strangers = True

    def id_bounds(self, settings: UserSource) -> IdBounds | None:
        # Only its first records show whether it gives ids.
        return IdBounds(settings.id_ttl_s, settings.ids_max)

    def open(self, settings: UserSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.user_defined.source.lane import open_user_defined

        if owner.client is None or owner.stream_name is None:
            raise MillstreamError(
                codes.IMPOSSIBLE, f"lane {owner.lane}: a user-defined source was opened without its function"
            )
        where = (owner.lane, owner.partitions, owner.position)
        return open_user_defined(owner.client, owner.stream_name, *where, clock=owner.clock)


UDSOURCE = _Udsource()
