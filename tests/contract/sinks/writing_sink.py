"""A sink as a user writes it: appends records to the file its environment names; run by the sink tests.

It takes every number but a few from 1,000,000 on, which make it say everything a sink can say.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import millstream_udf as udf

TARGET = Path(os.environ.get("SINK_TARGET", "target"))
_attempts: dict[str, int] = {}


@udf.sink
def append(record: udf.Record) -> None:
    number = json.loads(record.value)["n"]
    attempts = _attempts[record.id or ""] = _attempts.get(record.id or "", 0) + 1
    match number:
        case 1000011 if attempts < 3:
            raise ValueError(f"cannot take {number} yet")
        case 1000022 if attempts < 2:
            raise udf.Retry(0.001, "busy")
        case 1000033:
            raise udf.Drop("unwanted")
        case 1000044:
            raise udf.Fallback("not mine")
        case 1000055:
            raise udf.DeadLetter("hopeless")
    with TARGET.open("a") as target:
        print(json.dumps({"n": number, "id": record.id}), file=target)
