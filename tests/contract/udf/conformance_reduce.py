"""The reduce function of the suite: a first record says what to do. examples/udf-go/conformance does the same in Go."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import millstream_udf as udf


@udf.reduce
def obey(keys: tuple[str, ...], records: Iterator[udf.Record], window: udf.Window) -> list[udf.Message | bytes]:
    """Count, unless told otherwise."""
    records = iter(records)
    first = next(records)
    verb, _, rest = first.value.decode().partition(":")
    if verb == "fail":
        raise ValueError(f"failed: {rest}")
    if verb == "none":
        return []
    if verb == "early":
        return [b"early"]
    if verb == "dress":
        return [udf.Message(rest, keys=["new", "key"], tags=["late", "red"], headers={"colour": b"red"}), b"plain"]
    if verb == "many":
        return [b"%0100d" % index for index in range(int(rest))]
    if verb == "large":
        return [b"x" * (8 << 20)]
    if verb == "exit":
        # Once: the file says that it has.
        try:
            os.close(os.open(rest, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os._exit(9)
    if verb == "die":
        os._exit(9)
    if verb == "wait":
        Path(f"{rest}.begun").touch()
        while not os.path.exists(rest):
            threading.Event().wait(0.005)
    return [_counted(keys, first, records, window)]


def _counted(keys: tuple[str, ...], first: udf.Record, records: Iterator[udf.Record], window: udf.Window) -> bytes:
    count, size, last, headers, own = 1, len(first.value), first, len(first.headers), set(first.keys)
    for last in records:
        count += 1
        size += len(last.value)
        headers += len(last.headers)
        own.update(last.keys)
    return (
        f"{count} records, {size} bytes, {headers} headers, {'/'.join(keys)} {'/'.join(sorted(own))}, "
        f"{window.start_us} to {window.end_us} early {window.early}, {first.event_time_us} to {last.event_time_us}"
    ).encode()
