"""Records on the command line: checks of edge and partition, and how a record is printed.

Above it: `peek`, `tap`. Below it: the graph, records.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from millstream import codes
from millstream.errors import UserError
from millstream.nearest import did_you_mean
from millstream.printable import in_line
from millstream.record import Record
from millstream.spec.graph import Graph
from millstream.spec.models import Edge
from millstream_runner.local.formatting import time_text

_VALUE_CHARS_MAX = 200


def check_buffer(graph: Graph, edge: str, partition: int | None) -> None:
    """Raise `UserError` if the pipeline has no such edge, or the edge no such partition."""
    names = [one.name for one in graph.edges]
    if edge not in names:
        raise UserError(
            codes.NOT_IN_PIPELINE,
            f"pipeline {graph.pipeline.name} has no edge {edge!r}; its edges are: "
            f"{', '.join(names)}{did_you_mean(edge, names)}",
        )
    check_buffered(graph, graph.edge(edge))
    partitions = graph.vertex(graph.edge(edge).to).partitions
    if partition is not None and not 0 <= partition < partitions:
        raise UserError(codes.NOT_IN_PIPELINE, f"edge {edge} has partitions 0 to {partitions - 1}, not {partition}")


def check_buffered(graph: Graph, edge: Edge) -> None:
    """Raise `UserError` for an edge inside a chain."""
    if edge.chain:
        chain = graph.chain(graph.head(edge.to))
        near = [
            *(one.name for one in graph.edges_in[chain[0]]),
            *(one.name for name in chain for one in graph.edges_out[name] if not one.chain),
        ]
        raise UserError(
            codes.EDGE_HAS_NO_BUFFER,
            f"edge {edge.name} is chained and has no buffer: {' and '.join(chain)} run as one lane, and records "
            f"pass between them in memory. Nearby edges with buffers: {', '.join(near) or 'none'}",
        )


def record_line(sequence: int, index: int, record: Record, *, as_json: bool, partition: int | None = None) -> str:
    """A record on one line. `partition`: given if several are shown."""
    if as_json:
        more = {} if partition is None else {"partition": partition}
        return json.dumps({**more, **_as_json(sequence, index, record)})
    value = record.value.decode(errors="backslashreplace")
    if len(value) > _VALUE_CHARS_MAX:
        value = f"{value[:_VALUE_CHARS_MAX]}... ({len(record.value):,} bytes)"
    place = f"{sequence}[{index}]" if not partition else f"{partition}:{sequence}[{index}]"
    keys = f" keys={list(record.keys)}" if record.keys else ""
    headers = f" headers={sorted(record.headers)}" if record.headers else ""
    return f"{place} {time_text(record.event_time_us)}{keys}{headers} {in_line(value)}"


def _as_json(sequence: int, index: int, record: Record) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "sequence": sequence,
        "index": index,
        "event_time_us": record.event_time_us,
        "keys": list(record.keys),
        "id": record.id,
        "headers": {name: value.decode(errors="backslashreplace") for name, value in record.headers.items()},
    }
    try:
        entry["value"] = record.value.decode()
    except UnicodeDecodeError:
        entry["value_base64"] = base64.b64encode(record.value).decode()
    return entry
