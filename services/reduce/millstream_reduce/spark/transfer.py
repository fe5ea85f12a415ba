"""How results and errors cross from the driver to its clients. Pure.

Rows go as whole Arrow IPC streams of bounded size; an error of ours goes as the status of the call, its class in the
trailing metadata, and is raised again as what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millstream import errors
from millstream.errors import MillstreamError
from millstream.limits import MIB

PART_BYTES_MAX = 8 * MIB
"""Of rows in one message, unless a single row is larger."""
ERROR_CLASS = "millstream-error"
"""Key of the trailing metadata."""
MESSAGE_BYTES_MAX = 4096
"""Of an error's text: it travels in a header."""


def encoded_rows(table: pa.Table) -> Iterator[bytes]:
    """A table in parts. Nothing for one without rows."""
    waiting = list(reversed(table.to_batches()))
    while waiting:
        batch = waiting.pop()
        if batch.num_rows > 1 and batch.nbytes > PART_BYTES_MAX:
            # By halves: values differ in size, so a share of the rows is not a share of the bytes.
            half = batch.num_rows // 2
            waiting += [batch.slice(half), batch.slice(0, half)]
            continue
        if batch.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield sink.getvalue().to_pybytes()


def decoded_rows(parts: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Inverse of `encoded_rows`."""
    tables = [pa.ipc.open_stream(part).read_all() for part in parts]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def error_parts(error: MillstreamError) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Text and trailing metadata for an error."""
    text = str(error).encode()[:MESSAGE_BYTES_MAX].decode(errors="ignore")
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return text, ((ERROR_CLASS, known.__name__),)


def error_of(text: str, metadata: Sequence[tuple[str, str | bytes]]) -> MillstreamError | None:
    """Inverse of `error_parts`; None when it is no error of ours."""
    name = dict(metadata).get(ERROR_CLASS)
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or not issubclass(kind, MillstreamError):
        return None
    return kind(text)
