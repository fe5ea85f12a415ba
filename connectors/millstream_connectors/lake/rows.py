"""Records as rows of a table: Arrow tables, with the columns that are derived from the event time. Pure.

Values become columns as for Parquet (`file.parquet`). The collected rows of a commit are one stream in Arrow's own
format, which the table's client reads without copying.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.frame import Frame
from millstream_connectors.file.sink.formats import StorableRows
from millstream_connectors.file.sink.names import partitions
from millstream_connectors.file.sink.parquet import Parquet
from millstream_connectors.shared.arrow_arrays import texts_array
from millstream_connectors.shared.columns import Column


class TableRows:
    """The columns of one table."""

    extension = "arrow"

    def __init__(self, columns: Sequence[Column], of_time: Sequence[str]) -> None:
        """`of_time`: further columns, which are derived from the event time (`EVENT_TIME_PARTS`)."""
        self._values = Parquet(columns)
        self._of_time = of_time
        self.schema = self._values.schema
        for name in self._of_time:
            self.schema = self.schema.append(pa.field(name, pa.string()))

    def convert(self, frame: Frame) -> StorableRows[pa.Table]:
        """The rows of a frame's records, and the failures of records that cannot become one."""
        converted = self._values.convert(frame)
        if not self._of_time:
            return converted
        table = converted.content
        times = frame.event_times_us()
        for name in self._of_time:
            of = partitions([name])
            texts = [of(times[row]).partition("=")[2].encode() for row in converted.rows]
            table = table.append_column(pa.field(name, pa.string()), texts_array(texts))
        return StorableRows(converted.rows, table, converted.size, converted.failures)

    def begin(self) -> StreamBody:
        """The rows of one commit."""
        return StreamBody(self.schema)


class StreamBody:
    """Rows of one commit, as a stream in Arrow's format."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._tables: list[pa.Table] = []

    def add(self, content: pa.Table, start: int, stop: int) -> bytes:
        self._tables.append(content.slice(start, stop - start))
        return b""

    def finish(self) -> bytes:
        into = pa.BufferOutputStream()
        with pa.ipc.new_stream(into, self._schema) as stream:
            for table in self._tables:
                stream.write_table(table)
        self._tables.clear()
        return into.getvalue().to_pybytes()


def rows_of(parts: Sequence[bytes]) -> pa.RecordBatchReader:
    """The result of `StreamBody.finish`, in memory of Arrow: a library's own thread that frees memory of Python waits
    for the interpreter's lock."""
    stream = pa.BufferOutputStream()
    for part in parts:
        stream.write(part)
    return pa.ipc.open_stream(stream.getvalue())
