"""The default name of an edge. Imports nothing, so that shell completion can use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SUFFIXES = {"deadLetter": "-dead-letter", "late": "-late"}


def default_edge_name(edge: Mapping[str, Any]) -> str:
    """The name of an edge (as written) without a `name`."""
    suffix = _SUFFIXES.get(str(edge.get("kind")), "")
    return f"{edge.get('from')}-{edge.get('to')}{suffix}"
