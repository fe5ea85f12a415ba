"""What a sandbox costs a function's start: cold starts, with and without, in turns.

python benchmarks/sandbox_start.py --times 20
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from millstream.sandbox import Confinement
from millstream.udf.function import open_local_function
from millstream.udf.sidecar import SidecarSpec, python_command

_FUNCTION = "def process(value: bytes) -> bytes:\n    return value\n"
_HELD = {
    "plain": Confinement(),
    "limits": Confinement({"memory": 1 << 30, "files": 256, "cpu": 1}),
    "strict": Confinement(strict=True),
}


async def start_s(directory: Path, held: Confinement) -> float:
    """Seconds until a function answers."""
    spec = SidecarSpec(python_command("f.py:process"), "udf", "bench", "f", cwd=directory, held=held)
    begun = time.perf_counter()
    async with open_local_function(spec, log=lambda _stream, _line: None):
        return time.perf_counter() - begun


async def main(times: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "f.py").write_text(_FUNCTION)
        taken: dict[str, list[float]] = {kind: [] for kind in _HELD}
        for _ in range(times):
            for kind, held in _HELD.items():
                taken[kind].append(await start_s(directory, held))
    plain = statistics.median(taken["plain"])
    for kind, seconds in taken.items():
        median = statistics.median(seconds)
        print(
            f"{kind:<8} median {1000 * median:7.1f} ms, least {1000 * min(seconds):7.1f} ms, ratio {median / plain:.3f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    asyncio.run(main(parser.parse_args().times))
