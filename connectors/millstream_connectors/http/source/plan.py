"""Converts the settings of an `http` source to the plan of its lanes."""

from __future__ import annotations

from pathlib import Path

from millstream.clock import Clock
from millstream.record import LaneId
from millstream.spec.references import resolve
from millstream.wire.connections import ConnectionLimits
from millstream_connectors.http.settings import HttpSource
from millstream_connectors.http.source.lane import HttpPlan
from millstream_connectors.http.source.replaced import RebuiltValue, Tokens, server_context


def http_plan(source: HttpSource, base_dir: Path, lane: LaneId, clock: Clock) -> HttpPlan:
    """The plan for the settings of an `http` source. Errors: `UserError` if the token or the certificates are not
    available."""
    auth, tls = source.auth, source.tls
    tokens = contexts = None
    if auth is not None:
        what = f"lane {lane}: the token of `auth`"
        tokens = RebuiltValue(lambda: [resolve(auth.token, base_dir, what)], Tokens, what, clock)
    if tls is not None:
        certificates = f"lane {lane}: `tls`"
        named = {"certificate": tls.certificate, "key": tls.key, "clientCa": tls.client_ca}
        given = {f"{certificates}, its `{name}`": value for name, value in named.items() if value is not None}
        contexts = RebuiltValue(
            lambda: [resolve(value, base_dir, name) for name, value in given.items()],
            lambda texts: server_context(texts, certificates),
            certificates,
            clock,
        )
    return HttpPlan(
        host=source.host,
        port=source.port,
        buffer_records=source.buffer,
        tokens=tokens.newest if tokens is not None else None,
        tls=contexts.newest if contexts is not None else None,
        limits=ConnectionLimits(source.connections_max, source.client_connections_max),
        anybody=source.asks_who or source.allow_unauthenticated,
    )
