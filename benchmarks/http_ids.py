"""Ids of an HTTP source under kills, with a broker that is slow while lanes open: is each record there once?

    python benchmarks/http_ids.py [--kills K] [--seed S] [--json]

Senders post requests of 1, 5 or 20 records, with ids in a header or in a field, and send a request again, the same,
until it is answered 200; now and then also one that was. The process of the source is killed, and while the next one
opens its lane the broker is stopped (SIGSTOP) for 0.3 to 2 s at a time. At the end the run is drained, and the file
sink must hold every record that was acknowledged once, and none twice. Exit code 1 when it does not, or the run ended
before the kills did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import aiohttp

from millstream import codes
from millstream.errors import MillstreamError
from millstream.ports import free_ports
from millstream_runner.local.directory import DataDirectory

SENDERS = 6
REPEATED = 0.2
"""Share of requests that are sent again though they were answered 200."""
ANSWER_TIMEOUTS_S = (0.15, 1.0, 10.0)
READY_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 120.0
STOPS_S = (0.3, 2.0)
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: http-ids}}
spec:
  vertices:
    - name: in
      source: {{http: {{port: {port}, buffer: 5000}}}}
    - name: out
      sink: {{file: {{path: out, format: jsonl, rolling: {{maxAge: 2s}}}}}}
  edges:
    - {{from: in, to: out}}
"""


@dataclass(slots=True)
class Request:
    """What is posted, the same each time."""

    numbers: list[int]
    body: bytes
    headers: dict[str, str]


@dataclass(slots=True)
class Sent:
    """All that was sent."""

    records: int = 0
    acknowledged: list[Request] = field(default_factory=list)
    attempts: int = 0


class Senders:
    """Clients that send what is not answered again."""

    def __init__(self, rng: random.Random, port: int) -> None:
        self._rng = rng
        self._root = f"http://127.0.0.1:{port}"
        self.sent = Sent()
        self.stopping = False

    async def run(self, session: aiohttp.ClientSession) -> None:
        """One client, until it is asked to stop."""
        while not self.stopping:
            known = self.sent.acknowledged
            again = known and self._rng.random() < REPEATED
            # Of those before the last kill as well as of the last.
            request = known[-min(len(known), self._rng.choice((1, 20, 2000)))] if again else self._make()
            while not await self._post(session, request):  # noqa: ASYNC110  # as a client does
                await asyncio.sleep(0.05 * self._rng.random())
            if not again:
                known.append(request)

    async def is_ready(self, session: aiohttp.ClientSession) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.get(f"{self._root}/health") as answer:
                return answer.status == 200
        return False

    def _make(self) -> Request:
        count = self._rng.choice((1, 5, 20))
        numbers = list(range(self.sent.records, self.sent.records + count))
        self.sent.records += count
        ids = [str(UUID(int=self._rng.getrandbits(128))) for _ in numbers]
        body = "\n".join(json.dumps({"number": n, "nonce": i}) for n, i in zip(numbers, ids, strict=True)).encode()
        named = {"x-millstream-id": ids[0]} if self._rng.random() < 0.5 else {"x-millstream-id-field": "nonce"}
        return Request(numbers, body, {"Content-Type": "application/x-ndjson", **named})

    async def _post(self, session: aiohttp.ClientSession, request: Request) -> bool:
        self.sent.attempts += 1
        timeout = aiohttp.ClientTimeout(total=self._rng.choice(ANSWER_TIMEOUTS_S))
        url = f"{self._root}/vertices/in"
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.post(url, data=request.body, headers=request.headers, timeout=timeout) as answer:
                return answer.status == 200
        return False


@asynccontextmanager
async def open_run(directory: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`millstream run`, as a process."""
    (directory / "p.yaml").write_text(PIPELINE.format(port=port))
    command = [sys.executable, "-m", "millstream_runner", "run", "p.yaml", "--data-dir", "state"]
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, cwd=directory, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def pid_of(directory: Path, name: str) -> int | None:
    """A process of the run."""
    runtime = DataDirectory(directory / "state").read_runtime()
    return next((one.identity.pid for one in (runtime.processes if runtime else ()) if one.name == name), None)


async def until_ready(senders: Senders, session: aiohttp.ClientSession, run: asyncio.subprocess.Process) -> None:
    """Wait until the source takes records."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        while not await senders.is_ready(session):
            if run.returncode is not None:
                raise MillstreamError(codes.EXPERIMENT_FAILED, f"the run has ended with exit code {run.returncode}")
            await asyncio.sleep(0.05)


async def disturb(directory: Path, rng: random.Random, ready: asyncio.Event) -> int:
    """Stop the broker again and again until the source is ready; how often."""
    stops = 0
    while not ready.is_set():
        broker = pid_of(directory, "broker")
        if broker is not None:
            with suppress(ProcessLookupError):
                os.kill(broker, signal.SIGSTOP)
                stops += 1
                try:
                    await asyncio.sleep(rng.uniform(*STOPS_S))
                finally:
                    os.kill(broker, signal.SIGCONT)
        await asyncio.sleep(0.3 * rng.random())
    return stops


async def kill_again_and_again(
    directory: Path, kills: int, rng: random.Random, senders: Senders, run: asyncio.subprocess.Process
) -> int:
    """Kill the source so often; how often the broker was stopped meanwhile."""
    stops = 0
    timeout = aiohttp.ClientTimeout(total=2.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for number in range(kills):
            await until_ready(senders, session, run)
            before = len(senders.sent.acknowledged)
            async with asyncio.timeout(READY_TIMEOUT_S):
                while len(senders.sent.acknowledged) < before + 10:  # noqa: ASYNC110  # others count
                    await asyncio.sleep(0.05)
            await asyncio.sleep(rng.random())
            source = pid_of(directory, "in-0")
            if source is None:
                raise MillstreamError(codes.EXPERIMENT_FAILED, "the run has no source")
            with suppress(ProcessLookupError):
                os.kill(source, signal.SIGKILL)
            ready = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                disturbing = tasks.create_task(disturb(directory, rng, ready))
                try:
                    await until_ready(senders, session, run)
                finally:
                    ready.set()
            stops += disturbing.result()
            print(f"kill {number + 1} of {kills}, {stops} stops of the broker", file=sys.stderr, flush=True)
    return stops


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    """One run, and what came of it."""
    rng, port = random.Random(options.seed), free_ports()
    senders = Senders(rng, port)
    begun_s = time.monotonic()
    async with open_run(directory, port) as run, aiohttp.ClientSession() as session:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(senders.run(session))
            stops = await kill_again_and_again(directory, options.kills, rng, senders, run)
            senders.stopping = True
        run.send_signal(signal.SIGINT)
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            exit_code = await run.wait()
    output = (directory / "log").read_text(errors="replace")
    found = Counter(
        json.loads(line)["number"]
        for path in sorted((directory / "out").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    )
    acknowledged = {number for request in senders.sent.acknowledged for number in request.numbers}
    twice = sum(count > 1 for count in found.values())
    missing = len(acknowledged - found.keys())
    return {
        "benchmark": "http_ids",
        "kills": options.kills,
        "broker_stops": stops,
        "seconds": round(time.monotonic() - begun_s, 1),
        "requests": senders.sent.attempts,
        "acknowledged": len(acknowledged),
        "twice": twice,
        "missing": missing,
        "balanced": "account: BALANCED" in output,
        "exit_code": exit_code,
        "passed": exit_code == 0 and not twice and not missing,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-http-ids-") as name:
        directory = Path(name)
        try:
            result = asyncio.run(measure(options, directory))
        except* (MillstreamError, TimeoutError) as group:
            log = directory / "log"
            print(group.exceptions, log.read_text(errors="replace")[-3000:] if log.exists() else "", file=sys.stderr)
            result = {"passed": False}
    if "twice" in result:
        print(
            f"{result['acknowledged']:,} records acknowledged, {result['kills']} kills of the source, "
            f"{result['broker_stops']} stops of the broker, {result['seconds']} s: {result['twice']} twice, "
            f"{result['missing']} missing, exit code {result['exit_code']}"
        )
    if options.json:
        print(json.dumps(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
