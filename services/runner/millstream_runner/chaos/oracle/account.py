"""The conservation account: where every record went, lane by lane and buffer by buffer. Pure.

every lane:    inputs + timers = processed + filtered + dead-lettered + dropped + diverted + open
every buffer:  written by all lanes that write to it = read by the lane that reads it

Vertices that run as one lane have one mark, with an account for each of them. An edge between two of them is held to
the same as a buffer: what the one has passed on, the other has received.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.chaos.oracle.checks import Check, Result, checked
from millstream_runner.chaos.oracle.pipeline import OracleEdge, OraclePipeline

Marks = Mapping[tuple[str, str], mark_pb2.Mark]


def account_checks(pipeline: OraclePipeline, marks: Marks, *, ended: bool) -> list[Check]:
    """`ended`: the pipeline ran to its end, so no record may wait or be in an open window."""
    checks = [_lanes(pipeline, marks, vertex, ended=ended) for vertex in pipeline.vertices]
    return checks + [_edge(pipeline, marks, edge, ended=ended) for edge in pipeline.edges]


def by_vertex(pipeline: OraclePipeline, marks: Marks) -> dict[tuple[str, str], mark_pb2.Mark]:
    """The marks, with one of its own for each vertex that runs in the lane of another vertex: what the common mark says
    about it."""
    sources = {edge.name: edge.source for edge in pipeline.edges}
    found = dict(marks)
    for (_, lane), mark in marks.items():
        partition = lane.rpartition(".")[2]
        for member in mark.members:
            own = mark_pb2.Mark(ended=mark.ended, account=member.account)
            own.written.extend(one for one in mark.written if sources.get(one.edge) == member.vertex)
            found[member.vertex, f"{member.edge}.{partition}"] = own
    return found


def accounts(marks: Marks, vertex: str) -> Iterator[mark_pb2.Account]:
    """The accounts of a vertex's lanes. `inputs` are records that it has read, `processed` those that it had outputs
    for; for a sink, those that it wrote, including those of its `fallback`."""
    return (mark.account for (name, _), mark in marks.items() if name == vertex)


def _lanes(pipeline: OraclePipeline, marks: Marks, vertex: str, *, ended: bool) -> Check:
    faults: list[str] = []
    total = late = 0
    for lane in pipeline.lanes(vertex):
        mark = marks.get((vertex, lane))
        if mark is None:
            faults += [f"lane {lane} has no mark, though the pipeline has ended"] if ended else []
            continue
        account = mark.account
        gone = account.processed + account.filtered + account.dead_lettered + account.diverted
        gone += sum(account.dropped.values())
        given = f"{account.inputs:,} inputs and {account.timers:,} timers"
        if account.inputs + account.timers != gone + account.open:
            faults.append(f"lane {lane}: {given}, {gone:,} accounted for and {account.open:,} open")
        if ended and not mark.ended:
            faults.append(f"lane {lane} has not ended")
        if ended and account.open:
            faults.append(f"lane {lane}: {account.open:,} records in open windows, though the pipeline has ended")
        total, late = total + account.inputs, late + account.late
    what = "every input record is accounted for"
    return checked(vertex, what, faults, f"{total:,} records" + (f", {late:,} of them late" if late else ""))


def _edge(pipeline: OraclePipeline, marks: Marks, edge: OracleEdge, *, ended: bool) -> Check:
    faults: list[str] = []
    total = waiting = 0
    for partition in range(edge.partitions):
        written = sum(
            state.records
            for (vertex, _), mark in marks.items()
            if vertex == edge.source
            for state in mark.written
            if (state.edge, state.partition) == (edge.name, partition)
        )
        read = _read(pipeline, marks, edge.target, edge.name, partition)
        if read > written or (ended and read < written):
            faults.append(f"buffer {edge.name}/{partition}: {written:,} records written, {read:,} read")
        total, waiting = total + written, waiting + written - read
    what = "every written record was read"
    if waiting and not faults:
        return Check(edge.name, what, Result.UNCHECKED, f"{waiting:,} of {total:,} records still wait in it")
    return checked(edge.name, what, faults, f"{total:,} records")


def _read(pipeline: OraclePipeline, marks: Marks, vertex: str, edge: str, partition: int) -> int:
    if pipeline.kind(vertex) == "reduce":
        mark = marks.get((vertex, f"window.{partition}"))
        return 0 if mark is None else sum(one.records for one in mark.reduce.inputs if one.edge == edge)
    mark = marks.get((vertex, f"_all.{partition}"))
    if mark is not None:
        # A map that remembers has one lane for all of its edges.
        return sum(one.records for one in mark.inputs if one.edge == edge)
    mark = marks.get((vertex, f"{edge}.{partition}"))
    return 0 if mark is None else mark.account.inputs
