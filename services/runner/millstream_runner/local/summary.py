"""The conservation account of a whole pipeline (I2): where every record went, vertex by vertex, edge by edge. Pure.

Above it: the runner and `status`. Below it: the marks of all lanes. Two equations must hold exactly:

    for every lane:    inputs + timers = processed + filtered + dead-lettered + dropped + diverted (late) + open
    for every buffer:  written by all lanes upstream = read by the lane downstream + still waiting in it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.account import Account, account_of, consumed
from millstream.errors import REPAIR, DamageError
from millstream.plurals import counted
from millstream.record import BufferId, LaneId
from millstream.spec.graph import Graph
from millstream.spec.kinds import VertexKind
from millstream.spec.models import Edge
from millstream.spec.values import SpecModel
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.colours import Heading
from millstream_runner.local.formatting import aligned_columns, folded, shortened


@dataclass(frozen=True, slots=True)
class VertexAccount:
    """All lanes of one vertex."""

    vertex: str
    kind: VertexKind[SpecModel]
    account: Account
    written: int
    """Records written to its buffers, counted for each edge."""
    ended: bool
    """Whether all its lanes have ended."""
    accepted: int = 0
    """Records that a repair gave up; negative: records that it allowed to appear twice."""


@dataclass(frozen=True, slots=True)
class EdgeAccount:
    """All buffers of one edge."""

    edge: str
    written: int
    read: int

    @property
    def waiting(self) -> int:
        """Written and not read; negative if more records were read than written."""
        return self.written - self.read


@dataclass(frozen=True, slots=True)
class Summary:
    """The account of a pipeline."""

    vertices: Sequence[VertexAccount]
    edges: Sequence[EdgeAccount]
    differences: Sequence[str]
    """What does not balance, one sentence each."""
    damage: Sequence[str] = ()
    """Damage to stored data that explains what does not balance."""

    @property
    def balanced(self) -> bool:
        return not self.differences

    @property
    def ended(self) -> bool:
        """Whether every lane has ended, so that there is nothing left to do."""
        return all(vertex.ended for vertex in self.vertices)


ACCOUNT_TITLES = (
    "VERTEX",
    "TYPE",
    "INPUT",
    "PROCESSED",
    "FILTERED",
    "DEAD-LETTERED",
    "DROPPED",
    "WRITTEN",
    "BELOW-WATERMARK",
    "LATE",
)


_LEFT = ("VERTEX", "TYPE")
_MAY_BE_EMPTY = ("LATE", "BELOW-WATERMARK", "DROPPED", "FILTERED", "DEAD-LETTERED")
"""The order in which empty columns are removed from a table that is too wide."""
_NAME_CHARS = (24, 16)
"""The lengths to which names are shortened in a table that is still too wide."""


def summarize(graph: Graph, marks: Mapping[LaneId, mark_pb2.Mark], waiting: Mapping[BufferId, int]) -> Summary:
    """Add the marks up and check them. `waiting`: records counted in the buffers; buffers without a count are not
    compared. What waits inside a chain is in the marks."""
    # Several lanes of a chain may pass records over one edge inside it.
    read: Counter[BufferId] = Counter()
    written: Counter[BufferId] = Counter()
    for lane, mark in marks.items():
        for state in mark.written:
            written[BufferId(state.edge, state.partition)] += state.records
        for done in consumed(lane, mark):
            read[done.buffer] += done.records
    found: list[str] = []
    vertices = []
    for vertex in graph.vertices:
        total = Account()
        head = graph.head(vertex.name)
        lanes = graph.lanes_of(head)
        for lane in lanes:
            account = account_of(vertex.name, lane, marks[lane]) if lane in marks else Account()
            total.add(account)
            if account.difference:
                whose = f"lane {lane}" if vertex.name == head else f"lane {lane}, vertex {vertex.name}"
                found.append(
                    f"{whose}: {counted(account.inputs + account.timers, 'input')}, but "
                    f"{account.inputs + account.timers - account.difference:,} accounted for"
                )
        own = [buffer for edge in graph.edges_out[vertex.name] for buffer in _places_of(graph, edge)]
        ended = all(lane in marks and marks[lane].ended for lane in lanes)
        accepted = 0
        if vertex.name == head:
            accepted = sum(item.records for lane in lanes if lane in marks for item in marks[lane].accepted)
        sent = sum(written[buffer] for buffer in own)
        vertices.append(VertexAccount(vertex.name, vertex.definition, total, sent, ended, accepted))
    edges = []
    in_marks = waiting_in_marks(graph, marks)
    for edge in graph.edges:
        buffers = _places_of(graph, edge)
        for buffer in buffers:
            in_buffer = in_marks[buffer] if edge.chain else waiting.get(buffer)
            found += _buffer_differences(buffer, written[buffer], read[buffer], in_buffer)
        edges.append(
            EdgeAccount(edge.name, sum(written[buffer] for buffer in buffers), sum(read[buffer] for buffer in buffers))
        )
    return Summary(vertices, edges, found)


def waiting_in_marks(graph: Graph, marks: Mapping[LaneId, mark_pb2.Mark]) -> Counter[BufferId]:
    """Records inside chains that wait for the sink at the end: those that the marks keep."""
    found: Counter[BufferId] = Counter()
    for lane, mark in marks.items():
        edge = graph.chained_into(graph.chain(lane.vertex)[-1])
        if edge is not None and mark.undelivered_records:
            # The lanes of a join that begins the chain pass records over the same edge.
            found[BufferId(edge.name, lane.partition)] += mark.undelivered_records
    return found


def check_stored(summary: Summary, where: Path) -> None:
    """Raise `DamageError` if the stored data contradicts itself before anything has run."""
    if not summary.balanced:
        raise DamageError(
            codes.STORED_CONTRADICTS,
            f"what is stored in {where} contradicts itself, so some of it is not what was written: "
            f"{'; '.join(summary.differences)}. {REPAIR}",
        )


def account_row(vertex: VertexAccount) -> tuple[str, ...]:
    """The account of a vertex under `ACCOUNT_TITLES`; empty if the vertex cannot have such records."""
    account = vertex.account
    counts = account.inputs, account.processed, account.filtered, account.dead_lettered, sum(account.dropped.values())
    return (
        vertex.vertex,
        vertex.kind.name,
        *(f"{count:,}" for count in counts),
        f"{vertex.written:,}" if vertex.kind.has_output else "",
        f"{account.late:,}",
        f"{account.left_out_late:,}" if vertex.kind.has_windows else "",
    )


def summary_lines(summary: Summary, width: int | None = None) -> list[str]:
    """The summary for people. Its table is at most `width` characters wide if that is possible: empty columns are
    removed."""
    lines = _table(summary, width)
    lines += [remark for vertex in summary.vertices for remark in _remarks(vertex)]
    lines += [
        f"edge {edge.edge}: {counted(edge.waiting, 'waiting record')}" for edge in summary.edges if edge.waiting > 0
    ]
    if summary.balanced:
        lines.append("account: BALANCED (all records are accounted for, in each vertex and edge)")
    else:
        lines.append("account: NOT BALANCED")
        lines += [f"  {difference}" for difference in summary.differences]
        lines += [f"  damaged: {damage}" for damage in summary.damage]
    return lines


def _table(summary: Summary, width: int | None) -> list[str]:
    """Narrowed step by step until it fits: without empty columns, with headings of two lines, with short names, without
    the types."""
    rows = [ACCOUNT_TITLES, *map(account_row, summary.vertices)]
    columns = {column[0]: list(column) for column in zip(*rows, strict=True)}
    empty = [title for title in _MAY_BE_EMPTY if all(cell in ("0", "") for cell in columns[title][1:])]
    left_out: list[str] = []

    def fits() -> bool:
        return width is None or max(map(len, aligned_columns(columns, left=_LEFT))) <= width

    while empty and not fits():
        left_out.append(empty.pop(0))
        del columns[left_out[-1]]
    heading = 1
    if not fits():
        heading = 2
        columns = {title: [*_two_lines(title), *column[1:]] for title, column in columns.items()}
    for longest in _NAME_CHARS:
        if not fits():
            columns["VERTEX"] = [shortened(cell, longest) for cell in columns["VERTEX"]]
    if not fits():
        del columns["TYPE"]
    lines = aligned_columns(columns, left=_LEFT)
    lines[:heading] = map(Heading, lines[:heading])
    if left_out:
        named = ", ".join(title for title in ACCOUNT_TITLES if title in left_out)
        lines += folded(f"columns left out because they contain only zeros: {named}", width, indent=2)
    return lines


def _two_lines(title: str) -> tuple[str, str]:
    first, hyphen, second = title.partition("-")
    return (f"{first}-", second) if hyphen else ("", title)


def summary_json(summary: Summary) -> dict[str, Any]:
    """The summary for programs."""
    return {
        "balanced": summary.balanced,
        "ended": summary.ended,
        "vertices": [
            {
                "vertex": vertex.vertex,
                "type": vertex.kind.name,
                **asdict(vertex.account),
                "written": vertex.written,
                "accepted": vertex.accepted,
                "ended": vertex.ended,
            }
            for vertex in summary.vertices
        ],
        "edges": [
            {"edge": edge.edge, "written": edge.written, "read": edge.read, "waiting": edge.waiting}
            for edge in summary.edges
        ],
        "differences": list(summary.differences),
        "damage": list(summary.damage),
    }


def _remarks(vertex: VertexAccount) -> list[str]:
    account = vertex.account
    counts = {
        "repeated ids left out": account.repeated_ids,
        "outputs without a matching edge": account.unrouted,
        "outputs discarded at a full buffer": account.discarded,
        "handed to the fallback sink": account.fallback,
        "sent to a late edge": account.diverted,
        "kept for windows that are still open": account.open,
        "timers fired": account.timers,
    }
    found = [f"{vertex.vertex}: {count:,} {text}" for text, count in counts.items() if count]
    if vertex.accepted > 0:
        found.append(f"{vertex.vertex}: {vertex.accepted:,} accepted as lost by `millstream repair`")
    if vertex.accepted < 0:
        found.append(f"{vertex.vertex}: {-vertex.accepted:,} accepted as duplicates by `millstream repair`")
    return found + [f"{vertex.vertex}: {count:,} dropped: {reason}" for reason, count in account.dropped.items()]


def _places_of(graph: Graph, edge: Edge) -> list[BufferId]:
    """Where records of an edge are counted: its buffers, or their equivalent inside a chain."""
    return [BufferId(edge.name, partition) for partition in range(graph.vertex(edge.to).partitions)]


def _buffer_differences(buffer: BufferId, written: int, read: int, waiting: int | None) -> list[str]:
    if read > written:
        return [f"buffer {buffer}: {counted(read, 'record')} read, but only {written:,} written"]
    if waiting is not None and written != read + waiting:
        return [f"buffer {buffer}: {counted(written, 'record')} written, but {read:,} read and {waiting:,} waiting"]
    return []
