"""Runs one lane of a sink in a process of its own, which kills itself at a given call.

    python -m millstream_testing.killed JSON

The JSON has `settings`, `place`, `call` and `moment`: the process dies `before`, `after`, or somewhere `inside` that
call of `write` or `flush`.

Above it: the suites. Below it: the connector, found by its name.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from millstream.json_parser import parse_json
from millstream.spec.sinks import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_testing.checks import repeated
from millstream_testing.frames import FRAMES, offered, owner_of
from millstream_testing.programs import program_of

Moment = Literal["before", "inside", "after"]

_LIMIT_S = 60.0
_INSIDE_S = 0.02
"""The first call is killed at most this long after its start. A later call is killed within the duration of the longest
previous one."""


def die_writing(settings: Mapping[str, Any], place: Path, call: int, moment: Moment) -> None:
    """Runs a first owner of the lane in a process of its own, which dies at that call."""
    order = json.dumps({"settings": settings, "place": str(place), "call": call, "moment": moment})
    done = subprocess.run(
        [sys.executable, "-P", "-m", "millstream_testing.killed", order],
        timeout=_LIMIT_S,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (-signal.SIGKILL, 0):
        raise AssertionError(f"the lane ended by itself with code {done.returncode}:\n{done.stderr[-4000:]}")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _deliver(settings: Mapping[str, Any], place: Path, call: int, moment: Moment) -> None:
    calls, longest_s = 0, 0.0
    spec = FallbackSink.model_validate(dict(settings))
    async with program_of(spec, place) as client, open_sink(spec, replace(owner_of(place, 1), client=client)) as lane:
        for frame, end in offered(range(1, FRAMES + 1)):
            for work in (lambda frame=frame, end=end: lane.write([frame], end), lane.flush):
                calls += 1
                if calls == call and moment == "before":
                    _die()
                if calls == call and moment == "inside":
                    threading.Timer(random.uniform(0, longest_s or _INSIDE_S), _die).start()
                begun_s = time.monotonic()
                await repeated(work)
                longest_s = max(longest_s, time.monotonic() - begun_s)
                if calls == call:
                    _die()


if __name__ == "__main__":
    told = parse_json(sys.argv[1])
    asyncio.run(_deliver(told["settings"], Path(told["place"]), told["call"], told["moment"]))
