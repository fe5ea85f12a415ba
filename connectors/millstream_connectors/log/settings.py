"""The settings of the `log` sink, as pipeline files have them. Pure."""

from __future__ import annotations

from millstream.spec.values import SpecModel


class LogSink(SpecModel):
    """Writes each record as a line to the vertex's log."""
