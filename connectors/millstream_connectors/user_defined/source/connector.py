"""The `udsource`, as pipeline files name it."""

from __future__ import annotations

from millstream import codes
from millstream.errors import MillstreamError
from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream_connectors.user_defined.settings import UserSource
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Udsource(SourceConnector[UserSource]):
    model = UserSource
    meaning = "Records from a user-defined function."
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once if reading from a position gives the same records, or if each record always has the same id",
    )
    ends = "when its function says so"
    untrusted = True

    def open(self, settings: UserSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.user_defined.source.lane import open_user_defined

        if owner.client is None or owner.stream_name is None:
            raise MillstreamError(
                codes.IMPOSSIBLE, f"{owner.where}: a user-defined source was opened without its function"
            )
        return open_user_defined(owner.client, owner.stream_name, owner)


UDSOURCE = _Udsource()
