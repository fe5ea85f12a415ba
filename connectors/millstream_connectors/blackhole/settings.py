"""The settings of the `blackhole` sink, as pipeline files have them. Pure."""

from __future__ import annotations

from millstream.spec.values import SpecModel


class BlackholeSink(SpecModel):
    """Counts records and discards them."""
