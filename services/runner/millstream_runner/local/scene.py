"""Everything to show about a run at one moment, as a table and as short lines. Pure.

    Scene ──► table(scene, width, height) ──► head, header, as many vertices as fit, a note on the rest
          └─► plain_lines(scene) ───────────► one line, or two if a vertex is not running

Above it: the screen, `status`, the report. Below it: the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.plurals import counted
from millstream.printable import in_line
from millstream_runner.local.formatting import aligned_columns, count_text, duration_text, shortened, watermark_text
from millstream_runner.local.progress import VertexProgress, vertex_from_json
from millstream_runner.local.states import OVER, State

LINE_CHARS_MAX = 100
"""Length of a line of progress without a terminal."""
PAGE_S = 4.0
"""How long one page of a table is shown that is taller than the terminal."""
STALE_S = 2.5
"""Figures older than this are shown with their age: several readings from the broker have failed."""
SLOW_FILL = 0.5
"""A vertex whose fullest input buffer is fuller than this is called slow: the vertices before it will soon have to
wait."""
SLOW_SHARE = 0.5
"""So is a vertex that holds up its chain for more of the time than this."""
_NAMES_MAX = 3
_NAME_CHARS_MAX = 24

_VERTEX, _TYPE, _RECORDS, _RATE, _WAITING, _FULL, _WATERMARK, _STATE = range(8)
_TITLES = ("VERTEX", "TYPE", "RECORDS", "RATE/S", "WAITING", "FULL", "WATERMARK", "STATE")
_LEFT = frozenset({_VERTEX, _TYPE, _STATE})
_FITTING: tuple[tuple[str, int, int], ...] = (
    ("shorten", _VERTEX, 24),
    ("leave out", _TYPE, 0),
    ("shorten", _STATE, 16),
    ("leave out", _FULL, 0),
    ("shorten", _VERTEX, 16),
    ("leave out", _WATERMARK, 0),
    ("leave out", _RATE, 0),
    ("shorten", _VERTEX, 8),
    ("leave out", _WAITING, 0),
)
"""The steps, one after another, until a table is narrow enough."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything to show at one moment."""

    pipeline: str
    state: str
    """A value of `State`."""
    elapsed_s: float
    durability: str
    vertices: Sequence[VertexProgress]
    """All as of one moment."""
    states: Mapping[str, str]
    """The states of each vertex's processes, in words."""
    spark: str = ""
    """State of the Spark driver; empty if there is none."""
    waits_for: str = ""
    """What is not ready yet, during the start."""
    age_s: float = 0.0
    """The age of the figures of the vertices; everything else is current."""
    silent: str = "the broker"
    """What has not answered for that long."""

    @property
    def is_over(self) -> bool:
        return self.state in {state.value for state in OVER}

    @property
    def slow(self) -> VertexProgress | None:
        """The vertex that slows the others down."""
        return None if self.is_over else slow_of(self.vertices)


def slow_of(vertices: Sequence[VertexProgress]) -> VertexProgress | None:
    """The vertex that slows the others down: the last one with a full buffer, because it fills the ones before it, or
    the one that holds up the chain behind that buffer."""
    slow = [vertex for vertex in vertices if vertex.fill >= SLOW_FILL or vertex.holds_up >= SLOW_SHARE]
    return slow[-1] if slow else None


def scene_from_json(data: Mapping[str, Any]) -> Scene:
    """Inverse of `dataclasses.asdict`, for `status.json`."""
    return Scene(
        pipeline=data["pipeline"],
        state=data["state"],
        elapsed_s=data["elapsed_s"],
        durability=data["durability"],
        vertices=[vertex_from_json(vertex) for vertex in data["vertices"]],
        states=data["states"],
        spark=data.get("spark", ""),
        waits_for=data.get("waits_for", ""),
        age_s=data.get("age_s", 0.0),
    )


def table(scene: Scene, width: int | None = None, height: int | None = None) -> list[str]:
    """The table's lines, at most `width` characters wide and `height` lines high; None: unlimited.

    What does not fit is named. A table that is too high shows one page after another.
    """
    lines, left_out = _rows(scene, width)
    header, vertices = lines[0], lines[1:]
    above = [*_head(scene), header]
    below = [f"spark: {scene.spark}"] if scene.spark else []
    if scene.slow is not None:
        below.append(_slow_text(scene.slow))
    if left_out:
        below.append(f"columns that do not fit this width: {', '.join(left_out)}")
    if height is not None and len(above) + len(vertices) + len(below) > height:
        vertices, remark = _page(vertices, height - len(above) - len(below) - 1, scene.elapsed_s)
        below.insert(0, remark)
    shown = [in_line(line) for line in (*above, *vertices, *below)]
    if height is not None and len(shown) > height:
        # Not even one row fits: show the head, and what is missing.
        shown = [shown[0], in_line(below[0])][: max(1, height)]
    return shown if width is None else [shortened(line, width) for line in shown]


def _page(vertices: list[str], room: int, elapsed_s: float) -> tuple[list[str], str]:
    """The rows to show now, and a line that says which they are."""
    if room < 1:
        return [], f"{counted(len(vertices), 'vertex', 'vertices')} not shown: the terminal has too few lines"
    pages = -(-len(vertices) // room)
    page = int(elapsed_s / PAGE_S) % pages
    first = min(page * room, len(vertices) - room)
    return vertices[first : first + room], (
        f"vertices {first + 1}-{first + room} of {len(vertices)}, {len(vertices) - room} not shown "
        f"(page {page + 1} of {pages}, turns every {PAGE_S:.0f} s)"
    )


def _head(scene: Scene) -> list[str]:
    head = [f"{scene.pipeline}  {scene.state}  {duration_text(scene.elapsed_s)}  durability: {scene.durability}"]
    if scene.waits_for:
        head.append(f"waits for: {scene.waits_for}")
    if stale := _stale_text(scene):
        head.append(stale)
    return head


def _stale_text(scene: Scene) -> str:
    if scene.age_s < STALE_S or scene.is_over:
        return ""
    return f"the figures are {duration_text(scene.age_s)} old: {scene.silent} does not answer"


def _slow_text(vertex: VertexProgress) -> str:
    name = shortened(vertex.vertex, _NAME_CHARS_MAX)
    if vertex.fill >= SLOW_FILL:
        return f"slow: {name} (its input is {vertex.fill:.0%} full)"
    return f"slow: {name} (its chain waits for it {vertex.holds_up:.0%} of the time)"


def _rows(scene: Scene, width: int | None) -> tuple[list[str], list[str]]:
    """Header and vertices as lines, and the titles of columns that do not fit."""
    rows = [_TITLES, *(_row(vertex, scene) for vertex in scene.vertices)]
    columns = dict(enumerate(map(list, zip(*rows, strict=True))))
    left_out: list[str] = []
    for what, index, longest in _FITTING:
        if width is None or max(map(len, aligned_columns(columns, left=_LEFT))) <= width:
            break
        if what == "shorten":
            columns[index] = [shortened(cell, longest) for cell in columns[index]]
        else:
            left_out.append(columns.pop(index)[0])
    return aligned_columns(columns, left=_LEFT), left_out


def _row(vertex: VertexProgress, scene: Scene) -> tuple[str, ...]:
    state = scene.states.get(vertex.vertex, "")
    if not vertex.published:
        # It has not published anything yet, which is not a zero.
        return (vertex.vertex, vertex.kind, *("-" for _ in range(_RECORDS, _STATE)), state)
    return (
        vertex.vertex,
        vertex.kind,
        f"{vertex.records:,}",
        # There is no rate once it is over.
        "" if scene.is_over else f"{vertex.records_per_s:,.0f}",
        "" if not vertex.has_input else f"{vertex.waiting:,}",
        "" if not vertex.has_input else f"{vertex.fill:.0%}",
        watermark_text(vertex.watermark_us, vertex.watermark_lag_s),
        state,
    )


def plain_lines(scene: Scene) -> list[str]:
    """One or two lines of at most `LINE_CHARS_MAX` characters: rates, waiting records, and which vertices are slow or
    not running."""
    begin = f"{duration_text(scene.elapsed_s)} {scene.state}: "
    # This state has already said what it waits for.
    says_why = scene.state == State.WAITING_FOR_SPARK.value
    parts = [f"waits for {scene.waits_for}"] if scene.waits_for and not says_why else []
    if stale := _stale_text(scene):
        parts.append(stale)
    elif any(vertex.published for vertex in scene.vertices):
        parts += _figures(scene)
    lines = [begin + ("; ".join(parts) or "nothing has been read yet")]
    # After a failure the other vertices stop, which says nothing new.
    expected = {*_EXPECTED, scene.state, *([State.STOPPED.value] if scene.state == State.FAILED.value else [])}
    others = {name: state for name, state in scene.states.items() if state not in expected}
    remarks = ([_slow_text(scene.slow)] if scene.slow is not None else []) + ([_states_text(others)] if others else [])
    if remarks:
        lines.append(" " * len(begin) + "; ".join(remarks))
    return [shortened(in_line(line), LINE_CHARS_MAX) for line in lines]


_EXPECTED = frozenset({"", State.STARTING.value, State.RUNNING.value, State.DONE.value})


def _figures(scene: Scene) -> list[str]:
    reading = [vertex for vertex in scene.vertices if not vertex.has_input]
    ends = [vertex for vertex in scene.vertices if vertex.has_input and not vertex.has_output]
    writing = [vertex for vertex in ends if not vertex.takes_dead_letters]
    parts = []
    for word, group in (("in", reading), ("out", writing)):
        rate = "" if scene.is_over else f" ({sum(vertex.records_per_s for vertex in group):,.0f}/s)"
        parts.append(f"{word} {count_text(sum(vertex.records for vertex in group))}{rate}")
    if letters := sum(vertex.records for vertex in ends if vertex.takes_dead_letters):
        parts.append(counted(letters, "dead letter"))
    waiting = sum(vertex.waiting for vertex in scene.vertices)
    if waiting:
        parts.append(f"{count_text(waiting)} waiting")
    return [", ".join(parts)]


def _states_text(states: Mapping[str, str]) -> str:
    named = [f"{shortened(name, _NAME_CHARS_MAX)}: {state}" for name, state in list(states.items())[:_NAMES_MAX]]
    more = len(states) - len(named)
    return ", ".join(named) + (f", and {more} more" if more else "")
