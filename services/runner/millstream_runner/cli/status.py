"""`millstream status`: the progress of a run, or how far it got. It reads only files, so it works in any state of a
run; for a pipeline that runs elsewhere it asks the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from millstream import codes
from millstream.buffers.technology import Access
from millstream.clock import MICROSECONDS, SystemClock
from millstream.errors import DamageError, UserError
from millstream.plan.plan import Plan
from millstream.printable import indented
from millstream_runner.cli.answer import answer
from millstream_runner.cli.elsewhere import access_elsewhere, open_elsewhere, pipeline_elsewhere
from millstream_runner.cli.place import directory_of
from millstream_runner.local.directory import DataDirectory, Runtime, read_json
from millstream_runner.local.formatting import aligned, duration_text, watermark_text
from millstream_runner.local.processes import is_alive
from millstream_runner.local.progress import PipelineProgress, PublishedProgress, VertexProgress
from millstream_runner.local.scene import STALE_S, Scene, scene_from_json, table
from millstream_runner.local.screen import Screen, choose_screen
from millstream_runner.local.states import State

WATCH_INTERVAL_S = 0.5
"""Time between two updates."""


def run(arguments: argparse.Namespace) -> int:
    elsewhere = pipeline_elsewhere(arguments)
    if elsewhere is not None:
        if arguments.watch:
            raise UserError(
                codes.OPTIONS_CONFLICT, "--watch works for runs on this machine; leave it out with --broker"
            )
        vertices = asyncio.run(_look(elsewhere.plan, access_elsewhere(arguments, elsewhere.plan)))
        facts = {"pipeline": elsewhere.pipeline.name, "vertices": [asdict(vertex) for vertex in vertices]}
        answer(arguments, facts, aligned(_lane_rows(vertices), left={0, 1, 5}))
        return 0
    directory = directory_of(arguments)
    if arguments.watch:
        return _watch(directory, as_json=arguments.json)
    seen = _see(directory)
    if seen is None:
        raise UserError(
            codes.NO_NUMBERS_YET,
            f"{directory.root} has no figures yet, because the run has just begun; try again in a second",
        )
    answer(arguments, _as_json(directory, seen), _lines(directory, seen))
    return 0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a run according to its files."""

    runtime: Runtime
    shown: Mapping[str, Any]
    """The status file."""
    scene: Scene
    live: bool
    """Whether its runner is running."""


def _see(directory: DataDirectory) -> _Seen | None:
    """None until there are figures."""
    runtime = directory.read_runtime()
    # Checked before the figures are read: if the runner has exited, these are its last ones.
    live = runtime is not None and is_alive(runtime.runner)
    shown = read_json(directory.status)
    if runtime is None or shown is None:
        return None
    try:
        scene = scene_from_json(shown)
        since_s = (SystemClock().now_us() - shown["written_us"]) / MICROSECONDS
        scene = replace(scene, age_s=scene.age_s + since_s)
        if live:
            scene = replace(scene, elapsed_s=scene.elapsed_s + since_s)
            if since_s >= STALE_S:
                scene = replace(scene, silent="the runner")
        if not live and not scene.is_over:
            # The last file of a killed runner says "running", which is no longer true.
            interrupted = dict.fromkeys(scene.states, "")
            scene = replace(scene, state=State.INTERRUPTED.value, states=interrupted, spark="", waits_for="")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamageError(
            codes.RUN_FILE_UNREADABLE,
            f"{directory.status} does not contain the figures of a run ({error!r}); remove it",
        ) from error
    return _Seen(runtime, shown, scene, live)


def _watch(directory: DataDirectory, *, as_json: bool) -> int:
    """Show the run live until it is over or the user presses Ctrl-C, without affecting it."""
    screen = choose_screen(sys.stdout, quiet=False)
    try:
        last = asyncio.run(_follow(directory, screen, as_json=as_json))
    except KeyboardInterrupt:
        # This is the usual way to end it.
        return 0
    finally:
        screen.close()
    if not as_json:
        print("\n".join(_remarks(directory, last)))
    return 0


async def _follow(directory: DataDirectory, screen: Screen, *, as_json: bool) -> _Seen:
    """The state of the run at its end."""
    printed: tuple[int, bool] | None = None
    while True:
        seen = _see(directory)
        if seen is not None and as_json and (seen.shown["written_us"], seen.live) != printed:
            printed = seen.shown["written_us"], seen.live
            print(json.dumps(_as_json(directory, seen)), flush=True)
        elif seen is not None and not as_json:
            screen.show(seen.scene)
        if seen is not None and not seen.live:
            return seen
        await asyncio.sleep(WATCH_INTERVAL_S)


async def _look(plan: Plan, access: Access) -> list[VertexProgress]:
    """What the vertices published last, from a broker that does not belong to a local run."""
    progress = PipelineProgress(plan.graph)
    clock = SystemClock()
    async with open_elsewhere(plan, access) as view:
        await view.update(progress)
    return progress.sample(now_us=clock.now_us(), now_s=clock.monotonic_s())


def _as_json(directory: DataDirectory, seen: _Seen) -> dict[str, Any]:
    scene = asdict(seen.scene)
    return {
        "running": seen.live,
        "data_dir": str(directory.root),
        **{key: value for key, value in seen.shown.items() if key != "written_us"},
        "state": scene["state"],
        "states": scene["states"],
        "age_s": round(seen.scene.age_s, 3),
        "broker_url": seen.runtime.broker_url if seen.live else None,
        "processes": [
            {
                "name": process.name,
                "pid": process.identity.pid,
                "metrics_port": process.metrics_port,
                "replicas": process.replicas,
            }
            for process in seen.runtime.processes
            if is_alive(process.identity)
        ],
    }


def _lines(directory: DataDirectory, seen: _Seen) -> list[str]:
    lines = [*table(seen.scene), "", *aligned(_lane_rows(seen.scene.vertices), left={0, 1, 5}), ""]
    if seen.live:
        rows = [("PROCESS", "PID", "METRICS", "RUNS"), ("runner", str(seen.runtime.runner.pid), "", "")]
        for process in seen.runtime.processes:
            port = "" if process.metrics_port is None else f"port {process.metrics_port}"
            rows.append((process.name, str(process.identity.pid), port, " ".join(process.replicas)))
        lines += [*aligned(rows, left={0, 2, 3}), ""]
        lines.append(f"broker: {seen.runtime.broker_url}, with the key beside {directory.broker_access}")
    return lines + _remarks(directory, seen)


def _remarks(directory: DataDirectory, seen: _Seen) -> list[str]:
    """The lines below the figures."""
    lines = []
    if not seen.live:
        lines.append(f"not running; these figures are {duration_text(seen.scene.age_s)} old")
    failure = seen.shown.get("failure")
    if failure:
        code = f"[{failure['code']}]" if failure["code"] else ""
        lines.append(f"error{code}: {failure['process']} {failure['reason']}: {indented(failure['message'])}")
    return [*lines, f"data directory: {directory.root}"]


def _lane_rows(vertices: Sequence[VertexProgress]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("VERTEX", "LANE", "RECORDS", "WAITING", "WATERMARK", "STATE")]
    for vertex in vertices:
        for lane in vertex.lanes:
            waiting = "" if not vertex.has_input else f"{lane.waiting:,}"
            watermark = watermark_text(lane.watermark_us, None)
            rows += [(vertex.vertex, lane.lane, f"{lane.records:,}", waiting, watermark, _lane_state(lane))]
    return rows


def _lane_state(lane: PublishedProgress) -> str:
    if lane.ended:
        return State.DONE.value
    return "idle" if lane.idle else "open"
