"""What a look at a system has found, as findings of a pipeline file (`validate --online`).

A connector's `online_findings` is called in a thread, where it imports the client. What these functions return runs on
the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence

from millstream import codes
from millstream.errors import UserError
from millstream.spec.connectors import Place, Unfit
from millstream.spec.problems import Finding


async def no_findings(looking: Awaitable[object]) -> Sequence[Finding]:
    """None: for a look that raises an error if something is wrong."""
    await looking
    return ()


async def unfit(place: Place, looking: Awaitable[Iterable[Unfit]]) -> Sequence[Finding]:
    """Of faults that name their place in the settings."""
    return place.unfit(await looking)


async def unfit_setting(place: Place, setting: str, looking: Awaitable[Iterable[tuple[str, str]]]) -> Sequence[Finding]:
    """Of faults of one setting: what it is, and what is expected."""
    return [Finding(codes.TARGET_UNFIT, (*place.path, setting), what, expected) for what, expected in await looking]


async def absent(
    place: Place, setting: str, looking: Awaitable[object], what: str, expected: str, *, sign: str = ""
) -> Sequence[Finding]:
    """For a look that raises an error if something is wrong: if it is that the target of a setting is not there, this
    is found. `sign`: a part of the messages of such errors, if others have the same code."""
    try:
        await looking
    except UserError as error:
        if error.code is not codes.TARGET_UNFIT or sign not in str(error):
            raise
        return [Finding(codes.TARGET_UNFIT, (*place.path, setting), what, expected)]
    return ()
