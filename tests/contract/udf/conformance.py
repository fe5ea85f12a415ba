"""The function of this suite: it does what its input says. examples/udf-go/conformance is the same in Go."""

from __future__ import annotations

import os
import threading

import millstream_udf as udf


@udf.map
def obey(value: bytes) -> udf.Message | list[bytes] | bytes | None:
    """`verb:rest`; anything else in upper case."""
    verb, _, rest = value.decode().partition(":")
    match verb:
        case "none":
            return None
        case "split":
            return [part.encode() for part in rest.split(",")]
        case "dress":
            return udf.Message(rest, keys=["new", "key"], tags=["late", "red"], headers={"colour": b"red"})
        case "fail":
            raise ValueError(f"failed: {rest}")
        case "panic":
            raise RuntimeError(f"panicked: {rest}")
        case "lines":
            raise RuntimeError("what happened\n\tat main.go:12\n\tat main.go:7")
        case "retry":
            raise udf.Retry(0.25)
        case "dead":
            raise udf.DeadLetter(rest)
        case "drop":
            raise udf.Drop(rest)
        case "large":
            return b"x" * (100 << 20)
        case "exit":
            # Once: the file says that it has.
            try:
                os.close(os.open(rest, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return value.upper()
            os._exit(9)
        case "wait":
            # Tells that it has begun, and fails if it has begun before.
            os.close(os.open(f"{rest}.begun", os.O_CREAT | os.O_EXCL))
            while not os.path.exists(rest):
                threading.Event().wait(0.005)
    return value.upper()
