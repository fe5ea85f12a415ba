"""Opens the kind of sink a spec names.

Above it: the delivery. Below it: one folder per kind, found by name. It does not know how a sink works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream import codes
from millstream.errors import UserError
from millstream.importing import importing
from millstream.spec.formats import SinkFormat
from millstream.spec.needs import naming_needs
from millstream.spec.sinks import FallbackSink
from millstream.spec.values import SpecModel
from millstream_connectors.shared.encoding_lane import EncodingLane
from millstream_connectors.shared.envelope_lane import EnvelopeLane
from millstream_writer.connector import Encoders, EnvelopeForm, SinkConnector, SinkOwner
from millstream_writer.sink import SinkLane

if TYPE_CHECKING:
    from millstream_connectors.shared.formats.encoding import Encoder


def _encoder(form: SinkFormat, subject: str, owner: SinkOwner) -> AbstractAsyncContextManager[Encoder]:
    # Imported only here, because it imports an HTTP client.
    from millstream_connectors.shared.formats.encoding import open_encoder

    return open_encoder(form, subject, owner.base_dir, owner.where)


def _target(
    spec: FallbackSink, connector: SinkConnector[SpecModel], settings: SpecModel, owner: SinkOwner
) -> AbstractAsyncContextManager[SinkLane]:
    with naming_needs(spec, f"{owner.where}: the {spec.kind} sink"):
        return connector.open(settings, owner)


@asynccontextmanager
async def open_sink(spec: FallbackSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target, open for the lifetime of the context."""
    connector, settings = spec.connector, spec.settings
    if not isinstance(connector, SinkConnector):
        raise UserError(
            codes.EXTENSION, f"{owner.where}: the sink {spec.kind} cannot be opened: its object is not a SinkConnector"
        )
    form = connector.envelope_form(settings) if owner.envelope else EnvelopeForm.NONE
    async with AsyncExitStack() as stack:
        values, keys = [
            await stack.enter_async_context(await importing(_encoder, form, subject or "", owner))
            if form is not None
            else None
            for form, subject in (
                (spec.format, connector.subject(settings)),
                (spec.key_format, connector.key_subject(settings)),
            )
        ]
        if any(spec.formats()):
            owner = replace(owner, encoders=Encoders(values, keys))
        lane = await stack.enter_async_context(await importing(_target, spec, connector, settings, owner))
        if owner.encoders is not None and lane.durable is None:
            lane = EncodingLane(lane, owner.encoders)
        yield lane if form is EnvelopeForm.NONE else EnvelopeLane(lane, flat=form is EnvelopeForm.COLUMNS)
