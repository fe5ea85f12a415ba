"""`millstream tap`: shows records of an edge as they pass, without affecting them.

    what passes ─► print ─► what passes ... until --limit, --duration, Ctrl-C, or the end of the run

The pipeline does not know about the tap: nothing waits for it if it is slow, stopped or killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial

from millstream import codes
from millstream.buffers.registry import technology_of
from millstream.errors import RetryLaterError, UserError
from millstream.plan import resolved
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream_runner.cli.elsewhere import access_elsewhere, open_elsewhere, pipeline_elsewhere
from millstream_runner.cli.place import directory_of
from millstream_runner.cli.records import check_buffer, record_line
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory, read_json
from millstream_runner.local.formatting import seconds_of
from millstream_runner.local.processes import is_alive
from millstream_runner.local.tapping import Tap, TappedRecord, open_tap
from millstream_runner.local.until_over import until_over
from millstream_runner.local.view import PipelineView, open_view

POLL_S = 0.05
"""Between two attempts to open the tap, while nothing is stored."""
_QUIET_S = 1.0
"""After this time without a record, the tap checks whether any more can pass."""
_MISSED_PATIENCE_S = 5.0
"""Time limit for counting the missed records at the end."""


@dataclass(slots=True)
class _Shown:
    """The outcome of a tap."""

    tap: Tap | None = None
    shown: int = 0
    left_out: int = 0
    """Records that `--key` excluded."""
    reported_frames: int = 0
    """How many of the missed frames were reported with a line."""
    is_enough: bool = False
    """Whether `--limit` ended it."""
    is_ended: bool = False
    """Whether the edge is finished: its writers have ended."""
    is_over: bool = False
    """Whether the run ended during the tap."""

    def note_over(self) -> None:
        self.is_over = True


def run(arguments: argparse.Namespace) -> int:
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(codes.OPTION_VALUE, f"--limit {arguments.limit}: must be at least 1")
    limit_s = seconds_of(arguments.duration) if arguments.duration is not None else None
    if limit_s is None and arguments.duration is not None:
        raise UserError(
            codes.OPTION_VALUE, f"--duration {arguments.duration!r}: must be a duration, such as 30s, 10m or 2h"
        )
    elsewhere = pipeline_elsewhere(arguments)
    if elsewhere is not None:
        plan, access = elsewhere.plan, access_elsewhere(arguments, elsewhere.plan)
        check_buffer(plan.graph, arguments.edge, arguments.partition)
        audit.note_elsewhere(elsewhere, "tap", edge=arguments.edge, broker=access.place, access=access.identity)
        directory = None
        opening = open_elsewhere(plan, access)
    else:
        directory = directory_of(arguments)
        plan = resolved.load(directory.read_pipeline()).plan
        check_buffer(plan.graph, arguments.edge, arguments.partition)
        runtime = directory.read_runtime()
        if runtime is None or not is_alive(runtime.runner):
            raise UserError(
                codes.NO_SUCH_RUN,
                f"pipeline {plan.pipeline.name} is not running, so no records pass; `millstream peek` shows those that "
                "wait",
            )
        audit.note(directory, "tap", edge=arguments.edge)
        opening = open_view(plan, directory.access(runtime, technology_of(plan.pipeline)))
    shown = _Shown()
    # Ctrl-C is the usual way to end it.
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_follow(plan, opening, directory, arguments, limit_s, shown))
    if shown.tap is None:
        print(f"tap: no record has passed edge {arguments.edge} yet", file=sys.stderr)
    return 0


async def _follow(
    plan: Plan,
    opening: AbstractAsyncContextManager[PipelineView],
    directory: DataDirectory | None,
    arguments: argparse.Namespace,
    limit_s: float | None,
    shown: _Shown,
) -> None:
    """`directory`: that of the run; None for a run elsewhere."""
    async with opening as view, AsyncExitStack() as stack:
        try:
            async with until_over(directory, shown.note_over):
                with contextlib.suppress(TimeoutError):
                    partitions = None if arguments.partition is None else [arguments.partition]
                    opening_tap = partial(open_tap, plan, view, arguments.edge, partitions)
                    shown.tap = await _opened(stack, opening_tap, limit_s)
                    # The duration counts from here, not from the start of the command.
                    async with asyncio.timeout(limit_s):
                        await _show(shown.tap, arguments, shown)
        finally:
            if shown.tap is not None:
                if shown.is_over and not shown.is_enough:
                    _print_held(shown.tap, arguments, shown)
                print(await _in_all(shown.tap, directory, shown), file=sys.stderr)


async def _opened(
    stack: AsyncExitStack, opening: Callable[[], AbstractAsyncContextManager[Tap]], limit_s: float | None
) -> Tap:
    """The tap, once something is stored. Raises `TimeoutError` if nothing is stored within the duration."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while True:
        with contextlib.suppress(RetryLaterError):
            return await stack.enter_async_context(opening())
        if limit_s is not None and loop.time() - begun_s > limit_s:
            raise TimeoutError
        await asyncio.sleep(POLL_S)


async def _show(tap: Tap, arguments: argparse.Namespace, shown: _Shown) -> None:
    """Print records until there are enough, or until no more can pass."""
    while not shown.is_enough:
        passed = await tap.look(_QUIET_S)
        _print(tap, passed, arguments, shown)
        if not passed:
            with contextlib.suppress(RetryLaterError):
                shown.is_ended = await tap.has_ended()
                if shown.is_ended:
                    return


def _print_held(tap: Tap, arguments: argparse.Namespace, shown: _Shown) -> None:
    for passed in tap.held():
        if shown.is_enough:
            return
        _print(tap, passed, arguments, shown)


def _print(tap: Tap, passed: Sequence[TappedRecord], arguments: argparse.Namespace, shown: _Shown) -> None:
    if tap.missed_frames > shown.reported_frames:
        missed = tap.missed_frames - shown.reported_frames
        shown.reported_frames = tap.missed_frames
        print(f"tap: {counted(missed, 'frame')} missed here: removed before the tap could show them", file=sys.stderr)
    for one in passed:
        record = one.record
        if not arguments.key or any(key in record.keys for key in arguments.key):
            print(record_line(one.sequence, one.index, record, partition=one.partition, as_json=arguments.json))
            shown.shown += 1
            if shown.shown == arguments.limit:
                shown.is_enough = True
                break
        else:
            shown.left_out += 1
    sys.stdout.flush()


async def _in_all(tap: Tap, directory: DataDirectory | None, shown: _Shown) -> str:
    """The outcome, for people. It claims no more than is known."""
    parts = [f"{counted(shown.shown, 'record')} shown"]
    if shown.left_out:
        parts.append(f"{shown.left_out:,} with other keys skipped")
    if (shown.is_over or shown.is_ended) and not shown.is_enough:
        missed = await _missed(tap, directory, shown)
        if missed is None:
            parts.append("the number of missed records is unknown")
        elif missed:
            parts.append(f"{missed:,} missed: they passed faster than they could be shown")
    elif tap.missed_frames:
        parts.append(f"{counted(tap.missed_frames, 'frame')} missed")
    if shown.is_over:
        parts.append("the run has ended")
    return f"tap: {', '.join(parts)}"


async def _missed(tap: Tap, directory: DataDirectory | None, shown: _Shown) -> int | None:
    """Records that passed while the tap was open but were missed."""
    if not shown.is_over:
        with contextlib.suppress(TimeoutError, RetryLaterError):
            async with asyncio.timeout(_MISSED_PATIENCE_S):
                return await tap.missed()
    # The broker is gone; the last figures of the runner have the number of records that passed.
    status = read_json(directory.status) if directory is not None else None
    passed = (status or {}).get("edges", {}).get(tap.edge)
    if not isinstance(passed, int) or not tap.is_whole:
        return None
    return max(0, passed - tap.records_before - tap.seen)
