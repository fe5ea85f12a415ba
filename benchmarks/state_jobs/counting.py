"""What every peer does with a record: get 100 bytes for its key, put 100 bytes, and pass them on.

A record is a JSON object of 99 bytes that begins with `{"key":"`, a key of six digits and `"`. What is remembered for a
key is `<key> <records so far> <the rest of the last record>`. So the outputs show whether the state was kept.
"""

import os
import time
from functools import cache
from pathlib import Path

KEY = slice(8, 14)
COUNT = slice(7, 16)
_REST = slice(16, None)
RECORD = '{"key":"%06d","note":"%s"}'
RECORD_BYTES = 99
BEGUN = "begun-"
"""Beginning of the names of the files that say when a process had its first record."""


def advance(before: str | None, record: str) -> str:
    """The next state of a key, which is the output, too."""
    count = int(before[COUNT]) + 1 if before else 1
    return f"{record[KEY]} {count:09} {record[_REST]}"


def advance_bytes(before: bytes | None, record: bytes) -> bytes:
    """The same for peers that have bytes."""
    count = int(before[COUNT]) + 1 if before else 1
    return b"%b %09d %b" % (record[KEY], count, record[_REST])


@cache
def begin() -> None:
    """Call it with each record: the time of the first one in a process goes into a file of the run's directory."""
    path = Path(__file__).resolve().parent.parent / f"{BEGUN}{os.getpid()}"
    # Renamed, so that it is never seen empty.
    new = path.with_name(f"new-{path.name}")
    new.write_text(str(time.time()))
    new.rename(path)
