"""What an edge is called that has no name of its own. Imports nothing, so that a shell's completion may use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SUFFIXES = {"deadLetter": "-dead-letter", "late": "-late"}


def default_edge_name(edge: Mapping[str, Any]) -> str:
    """The name of an edge (as written) that gives none itself."""
    suffix = _SUFFIXES.get(str(edge.get("kind")), "")
    return f"{edge.get('from')}-{edge.get('to')}{suffix}"
