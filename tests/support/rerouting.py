"""Settings of connectors whose system is reached through a path of `millstream_testing.rerouted`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def rerouted(settings: Mapping[str, Any], port: int, reroute: Callable[[int], int]) -> Mapping[str, Any]:
    """The settings with another port in `url`. `settings`: those of one kind, by its name."""
    ((kind, own),) = settings.items()
    before = f":{port}"
    assert own["url"].count(before) == 1, own["url"]
    return {kind: {**own, "url": own["url"].replace(before, f":{reroute(port)}")}}
