"""Opens the kind of sink a spec names.

Above it: the delivery. Below it: one folder per kind, found by name. It does not know how a sink works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from millstream import codes
from millstream.errors import UserError
from millstream.spec.needs import needed_by, not_installed
from millstream.spec.sinks import FallbackSink
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOwner
from millstream_writer.sink import SinkLane
from millstream_writer.sinks.encoding import Encoders, EncodingLane
from millstream_writer.sinks.envelope import EnvelopeLane


@asynccontextmanager
async def open_sink(spec: FallbackSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target, open for the lifetime of the context."""
    connector, settings = spec.connector, spec.settings
    if not isinstance(connector, SinkConnector):
        raise UserError(
            codes.EXTENSION, f"{owner.where}: the sink {spec.kind} cannot be opened: its object is not a SinkConnector"
        )
    for one in not_installed(needed_by(spec)):
        raise UserError(codes.EXTRA_NEEDED, f"{owner.where}: the {spec.kind} sink {one.what}: {one.remedy}")
    form = connector.envelope_form(settings) if owner.envelope else EnvelopeForm.NONE
    async with AsyncExitStack() as stack:
        if any(spec.formats()):
            # Imported only here, because it imports an HTTP client.
            from millstream.formats.encoding import open_encoder

            named = (
                (spec.format, connector.subject(settings)),
                (spec.key_format, connector.key_subject(settings)),
            )
            values, keys = [
                await stack.enter_async_context(open_encoder(form, subject or "", owner.base_dir, owner.where))
                if form is not None
                else None
                for form, subject in named
            ]
            owner = replace(owner, encoders=Encoders(values, keys))
        lane = await stack.enter_async_context(connector.open(settings, owner))
        if owner.encoders is not None and lane.durable is None:
            lane = EncodingLane(lane, owner.encoders)
        yield lane if form is EnvelopeForm.NONE else EnvelopeLane(lane, flat=form is EnvelopeForm.COLUMNS)
