"""`millstream wal`: the logs of reduce lanes: segments, positions, hand-overs, windows, and whether they are complete.

It reads only files, so it works with or without a running lane.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from millstream import codes
from millstream.errors import DamageError, UserError
from millstream.plurals import counted
from millstream_reduce.group_keys import key_texts
from millstream_reduce.log.damage import time_text, window_text
from millstream_reduce.log.inspection import HandOverInspection, LogInspection, find_logs, inspect_log
from millstream_reduce.values import WindowContents
from millstream_runner.cli.answer import answer

_WINDOWS_SHOWN_MAX = 10
"""The most windows of one hand-over that are listed; `-o json` has all."""


def run(arguments: argparse.Namespace) -> int:
    if not arguments.directory.is_dir():
        raise UserError(codes.NO_SUCH_RUN, f"the directory {arguments.directory} does not exist")
    directories = find_logs(arguments.directory)
    if not directories:
        raise UserError(
            codes.NO_SUCH_RUN,
            f"there is no log in or below {arguments.directory}: no file has a name like 0000000000000001.wal",
        )
    logs = [inspect_log(directory, verify=arguments.verify) for directory in directories]
    # A log may have very many windows, of which the text names few.
    facts = {"verified": arguments.verify, "logs": [_as_json(log) for log in logs]} if arguments.json else {}
    answer(arguments, facts, (line for log in logs for line in _lines(log, verified=arguments.verify)))
    return DamageError.exit_code if any(log.faults for log in logs) else 0


def _lines(log: LogInspection, *, verified: bool) -> Iterator[str]:
    total = sum(segment.bytes for segment in log.segments)
    yield f"{log.directory}"
    yield f"  log {log.log_id} of {log.lane}, {counted(total, 'byte')}"
    yield f"  last opened under epoch {log.epoch} by {log.owner or 'an unnamed owner'}"
    yield f"  {'segment':>8} {'bytes':>14} {'entries':>9} {'records':>12} {'late':>8} {'hand-overs':>10} epoch  state"
    for item in log.segments:
        yield (
            f"  {item.number:>8} {item.bytes:>14,} {item.entries:>9,} {item.rows:>12,} {item.late:>8,} "
            f"{item.hand_overs:>10,} {item.epoch:>5}  {item.state}"
        )
    for edge, sequence in sorted(log.inputs.items()):
        yield f"  edge {edge} has been read up to stream sequence {sequence}"
    if log.closed_us is not None:
        yield f"  windows are closed up to {time_text(log.closed_us)}, lateness included"
    for _, hand_over in sorted(log.hand_overs.items()):
        yield from _hand_over_lines(hand_over)
    if log.results:
        yield f"  results of the hand-overs {', '.join(map(str, log.results))} are kept until they are committed"
    if log.torn_bytes:
        yield (
            f"  {counted(log.torn_bytes, 'byte')} after the last complete entry: still being written, or "
            "torn by a crash; "
            "not durable"
        )
    for fault in log.faults:
        yield f"  DAMAGED: {fault}"
    if not log.faults:
        yield f"  {'every entry is intact' if verified else 'nothing is missing (--verify computes the checksums)'}"


def _hand_over_lines(hand_over: HandOverInspection) -> Iterator[str]:
    windows = hand_over.windows
    yield f"  hand-over {hand_over.number}: {counted(len(windows), 'window')}, {counted(hand_over.rows, 'record')}"
    for one in windows[:_WINDOWS_SHOWN_MAX]:
        yield f"    {window_text(one.window)}: {counted(one.rows, 'record')}"
    if len(windows) > _WINDOWS_SHOWN_MAX:
        yield f"    and {len(windows) - _WINDOWS_SHOWN_MAX:,} more"


def _as_json(log: LogInspection) -> dict[str, Any]:
    return {
        "directory": str(log.directory),
        "lane": log.lane,
        "log_id": log.log_id,
        "epoch": log.epoch,
        "owner": log.owner,
        "segments": [{name: getattr(item, name) for name in item.__slots__} for item in log.segments],
        "inputs": log.inputs,
        "closed_us": log.closed_us,
        "hand_overs": [
            {
                "number": item.number,
                "segment": item.segment,
                "closed_us": item.closed_us,
                "records": item.rows,
                "windows": [_window_json(window) for window in item.windows],
            }
            for _, item in sorted(log.hand_overs.items())
        ],
        "results": log.results,
        "torn_bytes": log.torn_bytes,
        "faults": log.faults,
    }


def _window_json(one: WindowContents) -> dict[str, Any]:
    window = one.window
    return {
        "start_us": window.start_us,
        "end_us": window.end_us,
        "keys": None if window.key is None else key_texts(window.key),
        "early": window.early,
        "records": one.rows,
    }
