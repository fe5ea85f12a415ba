"""`millstream state`: what functions remember, as it is committed, while the pipeline runs or does not."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

from millstream.json_parser import parse_json
from millstream.plan import resolved
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream.printable import in_line
from millstream.udf.states import StateKind
from millstream_runner.cli.place import directory_of
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.formatting import time_text
from millstream_runner.local.stored import open_run
from millstream_runner.local.stored_states import LaneState, StoredEntry, check_remembers, stored_states
from millstream_udf.timer_entries import CLOCK_NAMES
from millstream_vertex.keyed.timers import timer_of

_VALUE_CHARS_MAX = 200


def run(arguments: argparse.Namespace) -> int:
    directory = directory_of(arguments)
    plan = resolved.load(directory.read_pipeline()).plan
    check_remembers(plan, arguments.vertex)
    audit.note(directory, "state", vertex=arguments.vertex, key=list(arguments.key or ()))
    return asyncio.run(_run(directory, plan, arguments))


async def _run(directory: DataDirectory, plan: Plan, arguments: argparse.Namespace) -> int:
    shown, lanes, size, left = 0, 0, 0, 0
    async with open_run(directory, plan) as view:
        async for lane in stored_states(view, plan, arguments.vertex):
            lanes, size = lanes + 1, size + lane.keyed.size
            for entry in lane.entries():
                if not _is_wanted(entry, arguments):
                    continue
                if arguments.count and shown == arguments.count:
                    left += 1
                    continue
                shown += 1
                print(json.dumps(_as_json(lane, entry)) if arguments.json else _line(entry))
    if not arguments.json:
        more = f"; {left:,} more are not shown (`--count`)" if left else ""
        print(f"{counted(shown, 'entry', 'entries')} of {counted(lanes, 'lane')}, which have {size:,} bytes{more}")
    return 0


def _is_wanted(entry: StoredEntry, arguments: argparse.Namespace) -> bool:
    key: Sequence[str] = arguments.key or ()
    if arguments.key and entry.key != tuple(key):
        return False
    if arguments.prefix is not None and not (entry.key and entry.key[0].startswith(arguments.prefix)):
        return False
    return arguments.name is None or entry.state.name == arguments.name


def _line(entry: StoredEntry) -> str:
    key = ", ".join(entry.key) or "(the lane)"
    if entry.kind is StateKind.TIMER:
        timer = timer_of(b"", entry.item, entry.value)
        return (
            f"{in_line(key)}  timer {in_line(timer.name.decode())} at {time_text(timer.at_us)} "
            f"({CLOCK_NAMES[timer.clock]} time)"
        )
    item = f"[{_shown(_decoded(entry.item, _item_codec(entry)))}]" if entry.kind.has_items else ""
    value = _shown(_decoded(entry.value, _codec(entry)))
    expires = f"  (expires {time_text(entry.expires_us)})" if entry.expires_us else ""
    return f"{in_line(key)}  {entry.state.name}{item} = {value}{expires}"


def _shown(value: Any) -> str:
    text = in_line(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[:_VALUE_CHARS_MAX]}... ({len(text):,} characters)"


def _as_json(lane: LaneState, entry: StoredEntry) -> dict[str, Any]:
    facts: dict[str, Any] = {"key": list(entry.key), "state": entry.state.name, "kind": entry.kind.name.lower()}
    if entry.kind is StateKind.TIMER:
        timer = timer_of(b"", entry.item, entry.value)
        facts |= {"timer": timer.name.decode(), "at_us": timer.at_us, "clock": CLOCK_NAMES[timer.clock]}
    else:
        if entry.kind.has_items:
            facts["item"] = _decoded(entry.item, _item_codec(entry))
        facts["value"] = _decoded(entry.value, _codec(entry))
    if entry.expires_us:
        facts["expires_us"] = entry.expires_us
    mark = lane.mark
    return {**facts, "partition": lane.lane.partition, "epoch": mark.epoch, "watermark_us": mark.watermark_us}


def _codec(entry: StoredEntry) -> str:
    return "counter" if entry.kind is StateKind.COUNTER else entry.state.codec


def _item_codec(entry: StoredEntry) -> str:
    return "index" if entry.kind is StateKind.LIST else entry.state.item_codec


def _decoded(data: bytes, codec: str) -> Any:
    """A value for people and for JSON; bytes that are not text in base64."""
    if codec == "counter":
        return int.from_bytes(data, "little", signed=True)
    if codec == "index":
        return int.from_bytes(data, "big")
    try:
        return parse_json(data) if codec == "json" else data.decode()
    except ValueError:
        return {"base64": base64.b64encode(data).decode()}
