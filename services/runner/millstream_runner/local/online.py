"""The checks of `validate --online`: whether sources and sinks can use their servers.

All connectors are checked at once, each with its own time limit, so one that does not answer hides no other. Above it:
`validate`. Below it: the connectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any, NamedTuple, TypeAlias

from millstream import codes
from millstream.errors import MillstreamError
from millstream.importing import importing
from millstream.limits import ONLINE_CHECK_TIMEOUT_S
from millstream.missing_packages import naming_missing_packages
from millstream.spec.connectors import Place
from millstream.spec.formats import Format, SinkFormat
from millstream.spec.loading import LoadedPipeline, Partial
from millstream.spec.needs import needed_by, not_installed
from millstream.spec.problems import Finding, Path
from millstream.spec.sinks import FallbackSink
from millstream.spec.sources import Source

_Asking: TypeAlias = Coroutine[Any, Any, Sequence[Finding]]


async def online_findings(loaded: LoadedPipeline | Partial) -> tuple[int, list[Finding]]:
    """How many sources and sinks were checked, and what they found. Those that lack a package are omitted."""
    taken: dict[Hashable, Path] = {}
    asked: list[_Check] = []
    registries: list[_Check] = []
    for index, vertex in loaded.sound.items():
        path: Path = ("spec", "vertices", index)
        for placed in vertex.ends:
            end = placed.end
            if not list(not_installed((*end.connector.needs(), *needed_by(end.settings)))):
                here = (*path, vertex.key, *placed.path, end.kind)
                place = Place(here, path, loaded.base_dir, vertex.replicas, taken)
                begin = partial(end.connector.online_findings, end.settings, place)
                asked.append(_Check(f"`{end.kind}`", place, begin))
                for name, form in end.formats():
                    if not list(not_installed(form.needs())):
                        beside = replace(place, path=(*here[:-1], name))
                        begin = partial(_look, end, name, form, loaded.base_dir)
                        registries.append(_Check(f"the schema registry of `{name}`", beside, begin))
    # No time counts before all have imported what they need, which takes seconds on a busy machine.
    answers = [_answer(check, await importing(_begun, check)) for check in (*asked, *registries)]
    return len(asked), [finding for findings in await asyncio.gather(*answers) for finding in findings]


class _Check(NamedTuple):
    """A source, a sink or a schema registry to ask."""

    name: str
    place: Place
    begin: Callable[[], _Asking]
    """Imports what it needs, and returns the question."""


def _begun(check: _Check) -> _Asking:
    try:
        with naming_missing_packages(check.name):
            return check.begin()
    except MillstreamError as error:
        return _failed(error)


async def _failed(error: MillstreamError) -> Sequence[Finding]:
    raise error


def _look(end: Source | FallbackSink, name: str, form: Format | SinkFormat, base_dir: FilePath) -> _Asking:
    from millstream_connectors.shared.formats.looking import look

    subject = None
    if isinstance(end, FallbackSink):
        named = end.connector.subject if name == "format" else end.connector.key_subject
        subject = named(end.settings)

    async def asking() -> Sequence[Finding]:
        await look(form, subject or "", base_dir, f"the {end.kind} {end.noun.removeprefix('a ')}")
        return ()

    return asking()


async def _answer(check: _Check, asking: _Asking) -> Sequence[Finding]:
    """What a check has found."""
    path = check.place.path
    try:
        async with asyncio.timeout(ONLINE_CHECK_TIMEOUT_S):
            return await asking
    except TimeoutError:
        what = f"{check.name} gave no answer within {ONLINE_CHECK_TIMEOUT_S:g} s"
        return (Finding(codes.TARGET_AWAY, path, what, "an address where a server answers"),)
    except MillstreamError as error:
        return (Finding(error.code, path, str(error), "a target that can be opened from this machine"),)
