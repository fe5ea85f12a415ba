"""The `udsource` and the `udsink`, as pipeline files name them."""

from __future__ import annotations

from millstream import codes
from millstream.errors import MillstreamError, UserError
from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream.spec.protocols import NATIVE
from millstream_connectors.user_defined.settings import UserSink, UserSource
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Source(SourceConnector[UserSource]):
    model = UserSource
    meaning = "Records from a user-defined function."
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once if reading from a position gives the same records, or if each record always has the same id",
    )
    ends = "when its function says so"
    untrusted = True

    def open(self, settings: UserSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.user_defined.source import open_user_defined

        if owner.client is None or owner.stream_name is None:
            raise MillstreamError(
                codes.IMPOSSIBLE, f"{owner.where}: a user-defined source was opened without its function"
            )
        return open_user_defined(owner.client, owner.stream_name, owner)


_SAME_IDS = (
    "at least once: after a crash the function gets records again, with the same ids, by which it can recognize them"
)


class _Sink(SinkConnector[UserSink]):
    whole = True
    model = UserSink
    meaning = "To a user-defined function."
    asks_for_fallback = True
    promise = Guarantee(
        GuaranteeId.BY_FUNCTION,
        "exactly once if the function keeps positions, in the transactions of its records; otherwise " + _SAME_IDS,
    )

    def guarantee(self, settings: UserSink, *, fallback: bool) -> Guarantee:
        if fallback or settings.protocol != NATIVE:
            return Guarantee(GuaranteeId.AT_LEAST_ONCE, _SAME_IDS)
        return self.promise

    def place(self, settings: UserSink) -> str:
        # What may say to the function where its target is. The image of a container is another one for each version.
        box = settings.container
        inside = None if box is None else (box.command, box.args, box.env)
        started = (settings.command, settings.python, settings.env, settings.working_dir)
        return repr((*started, inside, settings.address))

    def open(self, settings: UserSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.user_defined.sink.lane import open_udf_sink
        from millstream_connectors.user_defined.sink.position_lane import open_position_lane

        if owner.client is None:
            raise UserError(
                codes.CONNECTOR_SETTINGS, f"{owner.where}: a user-defined sink was opened without its function"
            )
        if owner.client.description.keeps_positions:
            return open_position_lane(owner.client, owner)
        return open_udf_sink(owner.client, owner.stream_name)


SOURCE = _Source()
SINK = _Sink()
