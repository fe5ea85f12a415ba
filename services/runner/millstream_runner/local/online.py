"""The checks of `validate --online`: whether sources and sinks can use their servers.

All connectors are checked at once, each with its own time limit, so one that does not answer hides no other. Above it:
`validate`. Below it: the connectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from millstream import codes
from millstream.errors import MillstreamError
from millstream.limits import ONLINE_CHECK_TIMEOUT_S
from millstream.spec.connectors import Place
from millstream.spec.formats import Format, SinkFormat
from millstream.spec.loading import Loaded, Partial
from millstream.spec.needs import needed_by, not_installed
from millstream.spec.problems import Finding, Path
from millstream.spec.sinks import FallbackSink
from millstream.spec.sources import Source


async def online_findings(loaded: Loaded | Partial) -> tuple[int, list[Finding]]:
    """How many sources and sinks were checked, and what they found. Those that lack a package are omitted."""
    taken: dict[Hashable, Path] = {}
    asked, registries = [], []
    limits: list[asyncio.Timeout] = []
    for index, vertex in loaded.sound.items():
        path: Path = ("spec", "vertices", index)
        for placed in vertex.ends:
            end = placed.end
            if not list(not_installed((*end.connector.needs(), *needed_by(end.settings)))):
                here = (*path, vertex.key, *placed.path, end.kind)
                place = Place(here, path, loaded.base_dir, vertex.replicas, taken)
                asked.append(_ask(f"`{end.kind}`", place, end.connector.online_findings(end.settings, place), limits))
                for name, form in end.formats():
                    if not list(not_installed(form.needs())):
                        beside = replace(place, path=(*here[:-1], name))
                        looking = _look(end, name, form, loaded.base_dir)
                        registries.append(_ask(f"the schema registry of `{name}`", beside, looking, limits))
    answers = asyncio.gather(*asked, *registries)
    # Each begins with its imports, which take seconds on a busy machine. Nothing else runs meanwhile, so no time counts
    # before all have begun.
    await asyncio.sleep(0)
    deadline_s = asyncio.get_running_loop().time() + ONLINE_CHECK_TIMEOUT_S
    for limit in limits:
        limit.reschedule(deadline_s)
    return len(asked), [finding for findings in await answers for finding in findings]


async def _look(
    end: Source | FallbackSink, name: str, form: Format | SinkFormat, base_dir: FilePath
) -> Sequence[Finding]:
    from millstream.formats.looking import look

    subject = None
    if isinstance(end, FallbackSink):
        named = end.connector.subject if name == "format" else end.connector.key_subject
        subject = named(end.settings)
    await look(form, subject or "", base_dir, f"the {end.kind} {end.noun.removeprefix('a ')}")
    return ()


async def _ask(
    name: str, place: Place, asked: Coroutine[Any, Any, Sequence[Finding]], limits: list[asyncio.Timeout]
) -> Sequence[Finding]:
    """What a check has found. Until it is over, its time limit is among `limits`, for the caller to set."""
    try:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            try:
                return await asked
            finally:
                limits.remove(limit)
    except TimeoutError:
        what = f"{name} gave no answer within {ONLINE_CHECK_TIMEOUT_S:g} s"
        return (Finding(codes.TARGET_AWAY, place.path, what, "an address where a server answers"),)
    except MillstreamError as error:
        return (Finding(error.code, place.path, str(error), "a target that can be opened from this machine"),)
