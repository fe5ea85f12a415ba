"""The stream that a sink writes to, and whether it fits the settings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from millstream.limits import NATS_POSITION_REFRESH_S
from millstream.nats.connection import BrokerConnection
from millstream.nats.versions import VERSION_MIN, is_too_old
from millstream_connectors.jetstream.settings import JetStreamSink
from millstream_connectors.nats.client import linked, translated

_NANOSECONDS = 1_000_000_000


class Fault(NamedTuple):
    """What does not fit the settings."""

    loc: str
    what: str
    expected: str


class TargetStream(NamedTuple):
    """A stream."""

    stream: str
    bytes_max: int
    """Maximum bytes of a message with its headers."""
    rolls_up: bool
    """Whether a position may replace the previous one."""


async def find_target(connection: BrokerConnection, settings: JetStreamSink) -> TargetStream | Fault:
    """The stream that includes the subject. Raises what requests raise."""
    streams = await _streams_of(connection, settings.subject)
    if len(streams) != 1:
        what = (
            f"no stream includes the subject {settings.subject}"
            if not streams
            else (f"several streams include the subject {settings.subject}: {', '.join(streams)}")
        )
        return Fault("subject", what, "a subject that one stream includes")
    (stream,) = streams
    config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
    if settings.positions is not None:
        if is_too_old(connection.server):
            what = f"the server is NATS {connection.server.get('version')}, which may store only a part of a batch"
            return Fault("positions", what, f"NATS {'.'.join(map(str, VERSION_MIN))} or later, or no `positions`")
        probe = f"{settings.positions}.position"
        if await _streams_of(connection, probe) != streams:
            what = f"the stream {stream} does not include {settings.positions}.>"
            return Fault("positions", what, f"that subject among those of {stream}")
        if not config.get("allow_atomic"):
            return Fault(
                "positions", f"the stream {stream} does not accept atomic batches", "a stream with `allow_atomic: true`"
            )
        if 0 < config.get("max_age", 0) < 2 * NATS_POSITION_REFRESH_S * _NANOSECONDS:
            hours = 2 * NATS_POSITION_REFRESH_S / 3600
            what = f"the stream {stream} deletes positions after {config['max_age'] / _NANOSECONDS:.0f} s (max_age)"
            return Fault("positions", what, f"a stream that keeps messages for at least {hours:g} hours")
        if config.get("retention", "limits") != "limits":
            what = f"the stream {stream} removes positions once a consumer has acknowledged them"
            return Fault("positions", what, "a stream with `retention: limits`")
    largest = [int(connection.server.get("max_payload", 0)), int(config.get("max_msg_size", -1))]
    bytes_max = min(size for size in largest if size > 0)
    return TargetStream(stream, bytes_max, bool(config.get("allow_rollup_hdrs")))


async def _streams_of(connection: BrokerConnection, subject: str) -> list[str]:
    answer = await connection.api("STREAM.NAMES", {"subject": subject})
    return list(answer.get("streams") or ())


async def look(settings: JetStreamSink, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings, with what is expected. Raises Millstream errors if it cannot be
    reached."""
    where = "validate --online"
    async with linked(settings, base_dir, where, "millstream validate") as connection:
        with translated(connection, where):
            found = await find_target(connection, settings)
    return [found] if isinstance(found, Fault) else []
