"""Opens the kind of sink a spec names.

Above it: the delivery. Below it: one folder per kind, found by name. Knows nothing of how a sink works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from millstream import codes
from millstream.errors import UserError
from millstream.spec.connectors import lacks
from millstream.spec.sinks import FallbackSink
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOwner
from millstream_writer.sink import SinkLane
from millstream_writer.sinks.envelope import EnvelopeLane


@asynccontextmanager
async def open_sink(spec: FallbackSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target, open from entering to leaving."""
    connector, settings = spec.connector, spec.settings
    if not isinstance(connector, SinkConnector):
        raise UserError(
            codes.EXTENSION, f"{owner.where}: the sink {spec.kind} cannot be opened: its object is not a SinkConnector"
        )
    for what, remedy in (*lacks(connector), *(spec.format.lacks() if spec.format is not None else ())):
        raise UserError(codes.EXTRA_NEEDED, f"{owner.where}: the {spec.kind} sink {what}: {remedy}")
    form = connector.envelope_form(settings) if owner.envelope else EnvelopeForm.NONE
    async with AsyncExitStack() as stack:
        if spec.format is not None:
            # Only then, because it brings a client for HTTP.
            from millstream.formats.encoding import open_encoder

            subject = connector.subject(settings) or ""
            encoder = await stack.enter_async_context(open_encoder(spec.format, subject, owner.base_dir, owner.where))
            owner = replace(owner, encoder=encoder)
        lane = await stack.enter_async_context(connector.open(settings, owner))
        if owner.encoder is not None and lane.durable is None:
            from millstream_writer.sinks.encoding import EncodingLane

            lane = EncodingLane(lane, owner.encoder)
        yield lane if form is EnvelopeForm.NONE else EnvelopeLane(lane, flat=form is EnvelopeForm.COLUMNS)
