"""Sends numbered records to an HTTP source, each until it is acknowledged, and records attempts and acknowledgements in
a file: `python -m millstream_runner.chaos.oracle.feeder --help`.

Every line of the file is a JSON object; `state` is "attempted", written before a record is first sent, or
"acknowledged", written when the source has said so. After SIGTERM it sends no new records, and completes those that it
has begun.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import aiohttp

_BATCH_S = 0.05
"""A request contains what is due in this time."""
_RETRY_S = 0.1
_ANSWER_TIMEOUT_S = 5.0
"""Shorter than some faults last, so that requests that did arrive are repeated."""
_KEYS = 13


_Record = dict[str, str | int]


class _Lane:
    """Feeds one split, in order."""

    def __init__(self, source: str, split: int, splits: int, url: str, rate: float, file: IO[str]) -> None:
        self._source = source
        self._split = split
        self._splits = splits
        self._url = url
        self._rate = rate / splits
        self._file = file
        self._made = 0

    async def run(self, session: aiohttp.ClientSession, stopping: asyncio.Event) -> None:
        begun_s = time.monotonic()
        while not stopping.is_set():
            due = int((time.monotonic() - begun_s) * self._rate) - self._made
            if due <= 0:
                await asyncio.sleep(_BATCH_S)
                continue
            # What could not be sent in time is not sent later: the source was away, and so were its senders.
            begun_s = time.monotonic() - self._made / self._rate if due > self._rate else begun_s
            records = [self._next() for _ in range(max(1, min(due, round(self._rate * _BATCH_S) + 1)))]
            self._write(records, "attempted")
            await self._deliver(session, records)
            self._write(records, "acknowledged")

    def _next(self) -> _Record:
        number = self._split + self._made * self._splits
        self._made += 1
        return {
            "source": self._source,
            "split": self._split,
            "number": number,
            "key": f"key-{number % _KEYS}",
            "event_time_us": time.time_ns() // 1000,
            "nonce": str(uuid.uuid4()),
        }

    async def _deliver(self, session: aiohttp.ClientSession, records: Sequence[_Record]) -> None:
        """Send the records repeatedly until they are acknowledged."""
        body = "".join(json.dumps(record) + "\n" for record in records).encode()
        headers = {"Content-Type": "application/x-ndjson", "x-millstream-id-field": "nonce"}
        while True:
            try:
                async with session.post(self._url, data=body, headers=headers) as answer:
                    if answer.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError, OSError):
                # No answer, or too late: it is unknown whether the request arrived.
                pass
            await asyncio.sleep(_RETRY_S)

    def _write(self, records: Sequence[_Record], state: str) -> None:
        for record in records:
            self._file.write(json.dumps({**record, "state": state}) + "\n")
        self._file.flush()


async def _feed(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT_S)
    with options.file.open("a", encoding="utf-8") as file:
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            for split in range(options.splits):
                url = f"http://127.0.0.1:{options.port + split}/vertices/{options.source}"
                lane = _Lane(options.source, split, options.splits, url, options.rate, file)
                tasks.create_task(lane.run(session, stopping), name=f"split {split}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Feed until SIGTERM, and until everything is acknowledged."""
    parser = argparse.ArgumentParser(prog="python -m millstream_runner.chaos.oracle.feeder", description=__doc__)
    parser.add_argument("--source", required=True, metavar="VERTEX", help="name of the source vertex")
    parser.add_argument("--port", type=int, required=True, help="port of its split 0; the others follow")
    parser.add_argument("--splits", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--rate", type=float, required=True, metavar="N", help="records per second, over all splits")
    parser.add_argument("--file", type=Path, required=True, help="where to write what was attempted and acknowledged")
    asyncio.run(_feed(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
