"""The source that replaces the sources of a pipeline when it is run on a case. It runs in its own process."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import millstream_udf as udf
from millstream.json_parser import parse_json

if TYPE_CHECKING:
    from millstream_runner.cases.case import CaseInput

FILE_VARIABLE = "MILLSTREAM_CASE_INPUTS"
"""Environment variable that names the file with the records."""


def input_line(record: CaseInput) -> str:
    """A record as a line of that file."""
    return json.dumps(
        {
            "value": base64.b64encode(record.value).decode(),
            "time_us": record.time_us,
            "keys": record.keys,
            "headers": record.headers,
            "id": record.id,
        }
    )


@udf.source
class CaseInputs:
    """Returns the records of a file, all in partition 0. Its position is the number of the next record."""

    async def open(self, position: bytes, partition: int, partitions: int) -> None:
        self.next = int(position) if position else 0
        lines = Path(os.environ[FILE_VARIABLE]).read_text(encoding="utf-8").splitlines()
        self.lines = lines if partition == 0 else []

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        records = list(self._records(records_max))
        self.next += len(records)
        return udf.Batch(records, position=b"%d" % self.next, ended=self.next >= len(self.lines))

    def _records(self, records_max: int) -> Iterator[udf.Record]:
        for line in self.lines[self.next : self.next + records_max]:
            written: dict[str, Any] = parse_json(line)
            time_us = written["time_us"]
            yield udf.Record(
                base64.b64decode(written["value"]),
                event_time=time_us if time_us is not None else time.time_ns() // 1000,
                keys=tuple(written["keys"] or ()),
                headers={name: value.encode() for name, value in (written["headers"] or {}).items()},
                id=written["id"],
            )
