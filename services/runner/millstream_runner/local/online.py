"""What `validate --online` asks: whether the sources and sinks of a pipeline find what they are to talk to.

Every connector is asked at once, and each has a limit of its own, so one that does not answer hides no other.
Above it: `validate`. Below it: the connectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

from millstream import codes
from millstream.errors import MillstreamError
from millstream.limits import ONLINE_CHECK_TIMEOUT_S
from millstream.spec.connectors import Place, lacks
from millstream.spec.kinds import PlacedEnd
from millstream.spec.loading import Loaded, Partial
from millstream.spec.problems import Finding, Path


async def online_findings(loaded: Loaded | Partial) -> tuple[int, list[Finding]]:
    """How many sources and sinks were asked, and what they found. Those that lack a package are left out."""
    taken: dict[Hashable, Path] = {}
    asked = []
    for index, vertex in loaded.sound.items():
        path: Path = ("spec", "vertices", index)
        for placed in vertex.ends:
            if not list(lacks(placed.end.connector)):
                here = (*path, vertex.key, *placed.path, placed.end.kind)
                asked.append(_ask(placed, Place(here, path, loaded.base_dir, vertex.replicas, taken)))
    return len(asked), [finding for findings in await asyncio.gather(*asked) for finding in findings]


async def _ask(placed: PlacedEnd, place: Place) -> Sequence[Finding]:
    end = placed.end
    try:
        async with asyncio.timeout(ONLINE_CHECK_TIMEOUT_S):
            return await end.connector.online_findings(end.settings, place)
    except TimeoutError:
        what = f"`{end.kind}` gave no answer within {ONLINE_CHECK_TIMEOUT_S:g} s"
        return (Finding(codes.TARGET_AWAY, place.path, what, "an address where a server answers"),)
    except MillstreamError as error:
        return (Finding(error.code, place.path, str(error), "a target that can be opened from this machine"),)
