"""A pipeline to be killed whose ends lie outside: an HTTP source, a user's own source, an HTTP sink, a user's own sink.

What it promises depends on both sides: the client sends until it is answered, with ids; the source can be read from a
position; the receivers tell a repetition by its key or id.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from contextlib import suppress
from pathlib import Path

import aiohttp

from tests.recovery.crash_pipeline import PORT, TARGET, CrashPipeline, Outputs, until

_PUSHED = range(24)
_REQUEST = 3
"""Records of a request."""
_READ = range(100, 130)
_FILE = "programs.py"
_KEPT = "kept.jsonl"
_TOLD = "told.jsonl"
_PROGRAMS = f'''\
import json
from pathlib import Path

import millstream_udf as udf


def note(file, row):
    with Path(__file__).with_name(file).open("a") as lines:
        lines.write(json.dumps(row) + "\\n")


@udf.source
class Numbers:
    """Four a read; its position is the next one."""

    async def open(self, position, partition, partitions):
        self.next = int(position or {_READ.start})

    async def read(self, context, records_max, timeout_s):
        first, self.next = self.next, min(self.next + min(4, records_max), {_READ.stop})
        records = [udf.Record(b'{{"number":%d}}' % number) for number in range(first, self.next)]
        return udf.Batch(records, position=b"%d" % self.next, ended=self.next >= {_READ.stop})

    async def committed(self, position):
        note("{_TOLD}", {{"position": int(position)}})


@udf.sink
def keep(record):
    note("{_KEPT}", {{"id": record.id, "number": json.loads(record.value)["number"]}})
'''


def _kept(outputs: Outputs) -> dict[str, int]:
    """Numbers that the user's sink has, by id."""
    found: dict[str, int] = {}
    with suppress(FileNotFoundError):
        # Who is writing the last line may be killed there.
        for line in (outputs.directory / _KEPT).read_text().splitlines():
            with suppress(ValueError):
                row = json.loads(line)
                assert found.setdefault(row["id"], row["number"]) == row["number"], row
    return found


async def _send(session: aiohttp.ClientSession, url: str, first: int) -> None:
    """Until it is answered: the server may not listen yet."""
    lines = "".join(f'{{"number": {number}}}\n' for number in _PUSHED[first : first + _REQUEST])
    headers = {"Content-Type": "application/x-ndjson", "x-millstream-id": f"{first}"}
    while True:
        with suppress(aiohttp.ClientError):
            async with session.post(url, data=lines, headers=headers) as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.01)


async def _feed(outputs: Outputs) -> None:
    """Everything again in every run: what was taken before has no effect."""
    url = f"http://127.0.0.1:{(outputs.directory / PORT).read_text()}/vertices/pushed"
    async with aiohttp.ClientSession() as session:
        for first in range(0, len(_PUSHED), _REQUEST):
            await _send(session, url, first)
    records = len(_PUSHED) + len(_READ)
    await until(lambda: len(outputs.received()) >= records and len(_kept(outputs)) >= records)


def _check(outputs: Outputs) -> None:
    expected = [*_PUSHED, *_READ]
    assert sorted(row["number"] for row in outputs.received()) == expected
    assert sorted(_kept(outputs).values()) == expected
    told = [json.loads(line)["position"] for line in (outputs.directory / _TOLD).read_text().splitlines()]
    assert told[-1] == _READ.stop, told


def _prepare(directory: Path) -> None:
    (directory / _FILE).write_text(_PROGRAMS)
    (directory / PORT).write_text(f"{_free_port()}")


def _free_port() -> int:
    """None of those that the system gives to another process between two runs."""
    while True:
        port = random.randint(20000, 29999)  # any will do
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


OUTSIDE = CrashPipeline(
    f"- name: pushed\n  source: {{http: {{port: {PORT}}}}}\n"
    f"- name: numbers\n  source: {{udsource: {{python: '{_FILE}:Numbers'}}}}\n"
    f"- name: delivered\n  sink: {{http: {{url: '{TARGET}', batch: {{maxRecords: 5}}}}}}\n"
    f"- name: kept\n  sink: {{udsink: {{python: '{_FILE}:keep'}}}}\n",
    ["pushed -> delivered", "numbers -> delivered", "pushed -> kept", "numbers -> kept"],
    _check,
    prepare=_prepare,
    feed=_feed,
)
