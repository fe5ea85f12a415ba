"""`millstream watermark`: shows how far event time has come, and what it costs to set it back to an earlier time."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from millstream import codes
from millstream.clock import END_OF_TIME_US, SystemClock
from millstream.dead_letter import time_text
from millstream.errors import UserError
from millstream.extract import microseconds_of
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream_runner.cli.answer import answer
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.setting_back import LaneTime, SetBackPoint, Watermarks
from millstream_runner.local.stored import StoredPipeline, load_stored, open_stored_buffer


def run(arguments: argparse.Namespace) -> int:
    plan, directory = load_stored(arguments.file, arguments.data_dir)
    time_us = _time_us(arguments.set_back) if arguments.set_back is not None else None
    if time_us is None and arguments.accept_loss:
        raise UserError(codes.OPTIONS_CONFLICT, "--accept-loss needs --set-back TIME")
    lines, facts = asyncio.run(_run(plan, directory, time_us, accept_loss=arguments.accept_loss))
    answer(arguments, facts, lines)
    return 0


async def _run(
    plan: Plan, directory: DataDirectory, time_us: int | None, *, accept_loss: bool
) -> tuple[list[str], dict[str, Any]]:
    """What was found and done, for people and for programs."""
    async with open_stored_buffer(directory, plan, "watermark") as buffer:
        watermarks = Watermarks(StoredPipeline(plan, buffer), directory.windows)
        lanes = await watermarks.lanes()
        lines = list(_lines(lanes))
        facts: dict[str, Any] = {"lanes": [_as_json(one) for one in lanes]}
        if time_us is None:
            return lines, facts
        targets = watermarks.targets(time_us)
        beyond = [one for one in lanes if one.is_beyond(targets[one.lane.vertex])]
        back = {"to_us": time_us, "beyond": [str(one.lane) for one in beyond], "set_back": False}
        if not beyond:
            return [*lines, f"no lane is beyond {time_text(time_us)}; nothing was changed"], facts | back
        lines += _costs(plan, time_us, targets, beyond)
        if not accept_loss:
            return [*lines, "nothing was changed; --accept-loss sets it back"], facts | back
        audit.note(directory, "set-back", to=time_text(time_us), lanes=[str(one.lane) for one in beyond])
        for one in beyond:
            await watermarks.set_back(one.lane, targets[one.lane.vertex])
    said = f"{counted(len(beyond), 'lane')} set back; the next run continues from there"
    return [*lines, said], facts | back | {"set_back": True}


def _as_json(one: LaneTime) -> dict[str, Any]:
    return {
        "lane": str(one.lane),
        "watermark_us": one.watermark_us,
        "closed_us": one.closed_us,
        "open_records": one.open_records,
        "ended": one.ended,
    }


def _lines(lanes: Sequence[LaneTime]) -> Iterator[str]:
    if not lanes:
        yield "no lane has committed anything"
    for one in lanes:
        closed = f", windows closed up to {time_text(one.closed_us)}" if one.closed_us is not None else ""
        reached = "end" if one.watermark_us >= END_OF_TIME_US else time_text(one.watermark_us)
        yield f"{one.lane}: watermark {reached}{closed}{', ended' if one.ended else ''}"


def _costs(plan: Plan, time_us: int, targets: Mapping[str, SetBackPoint], beyond: Sequence[LaneTime]) -> Iterator[str]:
    yield f"{counted(len(beyond), 'lane')} would be set back to {time_text(time_us)}. What it costs:"
    yield f"- records before {time_text(time_us)} are late, as they are now; those after it are in time again"
    for vertex in plan.reduces:
        lanes = [one for one in beyond if one.lane.vertex == vertex.name]
        if not lanes:
            continue
        end = time_text(targets[vertex.name].end_us)
        yield f"- {vertex.name}: windows that end by {end} stay closed permanently: records for them are late"
        yield (
            f"- {vertex.name}: a window that ends later, and was closed because of records after "
            f"{time_text(time_us)}, starts again and gives a second result"
        )
        records = sum(one.open_records for one in lanes)
        if records:
            yield (
                f"- {vertex.name}: {counted(records, 'record')} in open windows {'waits' if records == 1 else 'wait'} "
                "until event time reaches their ends"
            )


def _time_us(written: str) -> int:
    if written == "now":
        return SystemClock().now_us()
    try:
        return microseconds_of(datetime.fromisoformat(written))
    except ValueError:
        raise UserError(
            codes.OPTION_VALUE, f"--set-back {written}: expected `now` or a time such as 2024-01-31T08:00:00Z"
        ) from None
