"""A process with a queue is killed again and again: what it called durable is there, each record is in one window."""

from __future__ import annotations

import ast
import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from millstream_reduce.log.inspection import inspect_log
from tests.recovery.queue_lane import FRAME_RECORDS, frame, result_path
from tests.support.children import started
from tests.support.sizes import sized
from tests.unit.reduce.queued import EDGE

REPOSITORY = Path(__file__).parents[2]
FRAMES = 400
KILLS = sized(3, 6)
WAIT_S = 300


async def live(directory: Path, epoch: int, lines: int | None, rng: random.Random) -> tuple[int, int]:
    """Run the lane until it ends, or for so many lines and a moment, then kill it. Returns what was durable last."""
    starting = started(
        sys.executable,
        "-m",
        "tests.recovery.queue_lane",
        str(directory),
        str(epoch),
        str(FRAMES),
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    said = b"durable 0 0"
    async with starting as process:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = line
            if lines is not None:
                lines -= 1
                if lines <= 0:
                    # In the middle of whatever it does next.
                    await asyncio.sleep(rng.random() * 0.005)
                    process.kill()
                    lines = None
        code = await process.wait()
    assert code in (0, -9)
    # A line that was cut by the kill was not said.
    words = said.split() if said.endswith(b"\n") or said == b"durable 0 0" else [b"durable", b"0", b"0"]
    return int(words[1]), int(words[2])


@pytest.mark.guarantee("I1", "I3", "I6", "I9")
async def test_a_queue_that_is_killed_again_and_again_keeps_what_it_called_durable(tmp_path: Path) -> None:
    rng = random.Random()
    durable, handed, epoch = 0, 0, 0
    async with asyncio.timeout(WAIT_S):
        for _ in range(KILLS):
            epoch += 1
            sequence, number = await live(tmp_path, epoch, rng.randint(1, 12), rng)
            durable, handed = max(durable, sequence), max(handed, number)
            found = inspect_log(tmp_path / "log", verify=True)
            assert found.faults == []
            assert found.inputs.get(EDGE, 0) >= durable
            assert all(result_path(tmp_path, n).exists() or n in found.hand_overs for n in range(1, handed + 1))
        assert (await live(tmp_path, epoch + 1, None, rng))[0] == FRAMES
    held = Counter[bytes]()
    numbers = sorted(int(path.name.removeprefix("result-")) for path in tmp_path.glob("result-*"))
    assert numbers == list(range(1, len(numbers) + 1))
    for number in numbers:
        for start, end, _, values in ast.literal_eval(result_path(tmp_path, number).read_text()):
            assert all(start <= int(value.split()[2].rstrip(b".")) < end for value in values)
            held.update(values)
    assert held == Counter(value for sequence in range(1, FRAMES + 1) for value in frame(sequence).values())
    assert held.total() == FRAMES * FRAME_RECORDS
    assert sum(path.stat().st_size for path in (tmp_path / "log").glob("*.wal")) < 8192
