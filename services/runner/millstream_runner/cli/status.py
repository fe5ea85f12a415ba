"""`millstream status`: how far a run is, or how far it got. Reads files only, so it works in any state
of a run; of a pipeline that runs elsewhere it asks the broker."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millstream import codes
from millstream.buffers.technology import Access
from millstream.clock import MICROSECONDS, SystemClock
from millstream.errors import DamageError, UserError
from millstream.printable import indented
from millstream.spec.graph import Graph
from millstream_runner.cli.elsewhere import access_elsewhere, open_elsewhere, pipeline_elsewhere
from millstream_runner.cli.place import directory_of
from millstream_runner.local.directory import DataDirectory, Runtime
from millstream_runner.local.processes import is_alive
from millstream_runner.local.progress import LaneProgress, PipelineProgress, VertexProgress, vertex_from_json
from millstream_runner.local.screen import Scene, aligned, duration_text, table, watermark_text


def run(arguments: argparse.Namespace) -> int:
    elsewhere = pipeline_elsewhere(arguments)
    if elsewhere is not None:
        vertices = asyncio.run(_look(elsewhere.graph, access_elsewhere(arguments, elsewhere.graph)))
        if arguments.json:
            status = {"pipeline": elsewhere.pipeline.name, "vertices": [asdict(vertex) for vertex in vertices]}
            print(json.dumps(status))
        else:
            print("\n".join(aligned(_lane_rows(vertices), left={0, 1, 5})))
        return 0
    directory = directory_of(arguments)
    runtime = directory.read_runtime()
    shown = directory.read_status()
    if runtime is None or shown is None:
        raise UserError(
            codes.NO_NUMBERS_YET,
            f"{directory.root} has no numbers yet: the run has not come far enough; try again in a second",
        )
    live = is_alive(runtime.runner)
    try:
        age_s = (SystemClock().now_us() - shown["written_us"]) / MICROSECONDS
        if arguments.json:
            text = json.dumps(_as_json(directory, runtime, shown, live=live, age_s=age_s))
        else:
            text = "\n".join(_lines(directory, runtime, shown, live=live, age_s=age_s))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamageError(
            codes.RUN_FILE_UNREADABLE, f"{directory.status} does not hold the numbers of a run ({error!r}); remove it"
        ) from error
    print(text)
    return 0


async def _look(graph: Graph, access: Access) -> list[VertexProgress]:
    """What the vertices have published last, in a broker that is not a local run's."""
    progress = PipelineProgress(graph)
    clock = SystemClock()
    async with open_elsewhere(graph, access) as view:
        await view.update(progress)
    return progress.sample(now_us=clock.now_us(), now_s=clock.monotonic_s())


def _as_json(
    directory: DataDirectory, runtime: Runtime, shown: Mapping[str, Any], *, live: bool, age_s: float
) -> dict[str, Any]:
    return {
        "running": live,
        "data_dir": str(directory.root),
        "age_s": round(age_s, 3),
        **{key: value for key, value in shown.items() if key != "written_us"},
        "broker_url": runtime.broker_url if live else None,
        "processes": [
            {
                "name": process.name,
                "pid": process.identity.pid,
                "metrics_port": process.metrics_port,
                "replicas": process.replicas,
            }
            for process in runtime.processes
            if is_alive(process.identity)
        ],
    }


def _lines(
    directory: DataDirectory, runtime: Runtime, shown: Mapping[str, Any], *, live: bool, age_s: float
) -> list[str]:
    vertices = [vertex_from_json(vertex) for vertex in shown["vertices"]]
    # What a runner that was killed wrote last says "running"; it is not.
    state = shown["state"] if live or shown["state"] in ("ended", "stopped") else "interrupted"
    states = shown["states"] if live else dict.fromkeys(shown["states"], "")
    spark = shown.get("spark", "") if live else ""
    scene = Scene(shown["pipeline"], state, shown["elapsed_s"], shown["durability"], vertices, states, spark)
    lines = [*table(scene), "", *aligned(_lane_rows(vertices), left={0, 1, 5}), ""]
    if live:
        rows = [("PROCESS", "PID", "METRICS", "RUNS"), ("runner", str(runtime.runner.pid), "", "")]
        rows += [
            (process.name, str(process.identity.pid), _port_text(process.metrics_port), " ".join(process.replicas))
            for process in runtime.processes
        ]
        lines += [*aligned(rows, left={0, 2, 3}), ""]
        lines.append(f"broker: {runtime.broker_url}, with the key beside {directory.broker_access}")
    else:
        lines.append(f"not running; these numbers are {duration_text(age_s)} old")
    if shown.get("failure"):
        failure = shown["failure"]
        code = f"[{failure['code']}]" if failure["code"] else ""
        lines.append(f"error{code}: {failure['process']} {failure['reason']}: {indented(failure['message'])}")
    lines.append(f"data directory: {directory.root}")
    return lines


def _lane_rows(vertices: Sequence[VertexProgress]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("VERTEX", "LANE", "RECORDS", "WAITING", "WATERMARK", "STATE")]
    for vertex in vertices:
        for lane in vertex.lanes:
            waiting = "" if not vertex.has_input else f"{lane.waiting:,}"
            watermark = watermark_text(lane.watermark_us, None)
            rows += [(vertex.vertex, lane.lane, f"{lane.records:,}", waiting, watermark, _lane_state(lane))]
    return rows


def _port_text(port: int | None) -> str:
    return "" if port is None else f"port {port}"


def _lane_state(lane: LaneProgress) -> str:
    if lane.ended:
        return "ended"
    return "idle" if lane.idle else "open"
