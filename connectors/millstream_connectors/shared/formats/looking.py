"""Whether a registry answers, and has what a `format` needs, for `validate --online`. It changes nothing there.

Above it: `validate`. Below it: the registry, decoder and encoder.
"""

from __future__ import annotations

from pathlib import Path

from millstream.clock import SystemClock
from millstream.spec.formats import Format, SinkFormat
from millstream_connectors.shared.formats.decoding import open_decoder
from millstream_connectors.shared.formats.encoding import open_encoder


async def look(settings: Format | SinkFormat, subject: str, base_dir: Path, where: str) -> None:
    """Raises the error that a lane would raise or wait for. `subject`: subject of a sink's schema, if `settings` names
    none."""
    if isinstance(settings, SinkFormat):
        async with open_encoder(settings, subject, base_dir, where) as encoder:
            await encoder.check()
    else:
        async with open_decoder(settings, base_dir, SystemClock(), where) as decoder:
            await decoder.check()
