"""The report of a run: one page that opens offline, however the run ended. Pure.

Above it: `millstream run --report`. Below it: the recording of the run, its account, pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millstream.spec.graph import Graph
from millstream_runner.local.formatting import duration_text, shortened
from millstream_runner.local.recording import Point, Recording
from millstream_runner.local.summary import ACCOUNT_TITLES, Summary, account_row
from millstream_runner.pictures.charts import Line, chart_style, line_chart
from millstream_runner.pictures.graph import to_svg
from millstream_runner.pictures.page import page, table, text

SAMPLES_MAX = 20
"""The most kinds of dead letters that are shown."""
EXCERPT_CHARS_MAX = 300
"""The most characters of a dead letter's value."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters with the same vertex and reason."""

    vertex: str
    reason: str
    count: int
    place: str
    """Place of one of them."""
    excerpt: str
    """The beginning of its value."""


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of a report."""

    graph: Graph
    recording: Recording
    outcome: str
    """How the run ended, in a sentence."""
    is_good: bool
    elapsed_s: float
    began: str
    """The start time, for people."""
    summary: Summary | None
    """None if it could not be read."""
    failure: str
    """The error with which it failed; empty if it did not."""
    dead_letters: Sequence[DeadLetters]
    dead_letters_remark: str
    """Which files were read, or why they could not be read."""
    environment: Mapping[str, str]
    options: Mapping[str, str]


def report_page(report: Report) -> str:
    """The page."""
    name = report.graph.pipeline.name
    return page(
        f"Run of {name}",
        [
            chart_style(),
            f"<h1>Run of {text(name)}</h1>",
            f'<p><span class="{"good" if report.is_good else "bad"}">{text(report.outcome)}</span><br>',
            f'<span class="soft">began {text(report.began)}, took {duration_text(report.elapsed_s)}</span></p>',
            *([f"<pre>{_lines(report.failure)}</pre>"] if report.failure else []),
            f'<div class="wide">\n{to_svg(report.graph)}</div>',
            *_charts(report),
            *_account(report.summary),
            *_slow(report),
            *_troubles(report),
            *_dead_letters(report),
            "<h2>Environment</h2>",
            table(("what", "which"), report.environment.items()),
            "<h2>Options</h2>",
            table(("option", "value"), report.options.items()),
        ],
    )


def _lines(words: str) -> str:
    return "\n".join(text(line) for line in words.splitlines())


def _charts(report: Report) -> Iterator[str]:
    points = report.recording.points
    names = report.graph.order
    times = [point.at_s for point in points]
    yield "<h2>Over time</h2>"
    yield line_chart(
        "rates",
        "Records completed",
        "records per second",
        times,
        [Line(name, _rates(points, name)) for name in names],
    )
    reading = [name for name in names if report.graph.vertex(name).definition.has_input]
    waiting = [Line(name, [_of(point, name) for point in points]) for name in reading]
    yield line_chart("waiting", "Records that wait before each vertex, at most", "records", times, waiting)
    yield line_chart(
        "delay",
        "How long event time takes to the sinks, at most",
        "seconds",
        times,
        [Line("from the sources to the sinks", [point.delay_s for point in points])],
    )
    yield '<p class="soft">The delay is measured by watermarks, twice a second: it says how long ago the sources were '
    yield "where the sinks are now. A run is drawn with at most 600 points; rates between them are exact.</p>"
    yield table(("after", "state"), [(duration_text(at_s), state) for at_s, state in report.recording.states])


def _of(point: Point, name: str) -> float | None:
    vertex = point.vertices.get(name)
    return None if vertex is None else vertex.waiting


def _rates(points: Sequence[Point], name: str) -> list[float | None]:
    """Rate between a point and the previous one; None if there is none."""
    found: list[float | None] = []
    before: Point | None = None
    for point in points:
        one, other = point.vertices.get(name), before.vertices.get(name) if before is not None else None
        if one is None or other is None or before is None or point.at_s <= before.at_s:
            found.append(None)
        else:
            found.append(max(0.0, (one.records - other.records) / (point.at_s - before.at_s)))
        before = point
    return found


def _account(summary: Summary | None) -> Iterator[str]:
    yield "<h2>Account</h2>"
    if summary is None:
        yield (
            '<p class="bad">The account could not be read: the run was ended at once, or its broker was not '
            "running.</p>"
        )
        return
    if summary.balanced:
        yield '<p><span class="good">BALANCED</span>: every record is accounted for, in every vertex and edge.</p>'
    else:
        yield '<p><span class="bad">NOT BALANCED</span></p>'
        faults = [*summary.differences, *(f"damaged: {damage}" for damage in summary.damage)]
        yield f"<ul>{''.join(f'<li>{text(fault)}</li>' for fault in faults)}</ul>"
    titles = (*(title.lower() for title in ACCOUNT_TITLES), "state")
    rows = [(*account_row(vertex), "done" if vertex.ended else "stopped") for vertex in summary.vertices]
    yield table(titles, rows, numbers=frozenset(range(2, len(ACCOUNT_TITLES))))
    waiting = [(edge.edge, f"{edge.written:,}", f"{edge.read:,}", f"{edge.waiting:,}") for edge in summary.edges]
    yield table(("edge", "written", "read", "waiting"), waiting, numbers=frozenset({1, 2, 3}))


def _slow(report: Report) -> Iterator[str]:
    yield "<h2>What was slow</h2>"
    slow = sorted(report.recording.slow_s.items(), key=lambda item: -item[1])
    if not slow:
        yield "<p>Nothing: no vertex had more than half of its input buffer full, or held up its chain.</p>"
        return
    shares = [(name, duration_text(s), f"{s / max(s, report.elapsed_s):.0%}") for name, s in slow]
    yield (
        "<p>How long each vertex held up the others: the last one with more than half of its input buffer full, or for "
        "which its chain waited more than half of the time.</p>"
    )
    yield table(("vertex", "for", "of the run"), shares, numbers=frozenset({1, 2}))


def _troubles(report: Report) -> Iterator[str]:
    yield "<h2>Warnings and errors</h2>"
    recording = report.recording
    if not recording.troubles:
        yield "<p>None.</p>"
        return
    rows = [
        (
            one.level,
            one.code,
            one.process,
            f"{one.count:,}",
            duration_text(one.first_s),
            duration_text(one.last_s),
            one.text,
        )
        for one in recording.troubles.values()
    ]
    yield table(("level", "code", "process", "times", "first", "last", "message"), rows, numbers=frozenset({3}))
    if recording.troubles_left_out:
        yield f"<p>and {recording.troubles_left_out:,} more with other texts: see `millstream logs`.</p>"


def _dead_letters(report: Report) -> Iterator[str]:
    yield "<h2>Dead letters and dropped records</h2>"
    summary = report.summary
    rows = []
    for vertex in summary.vertices if summary is not None else ():
        if vertex.account.dead_lettered:
            rows.append((vertex.vertex, "dead-lettered", f"{vertex.account.dead_lettered:,}"))
        rows += [(vertex.vertex, f"dropped: {why}", f"{count:,}") for why, count in vertex.account.dropped.items()]
    if rows:
        yield table(("vertex", "what", "records"), rows, numbers=frozenset({2}))
    else:
        yield "<p>None.</p>"
    if report.dead_letters:
        found = [
            (one.vertex, shortened(one.reason, EXCERPT_CHARS_MAX), f"{one.count:,}", one.place, one.excerpt)
            for one in report.dead_letters
        ]
        yield table(("vertex", "reason", "found", "for example", "value"), found, numbers=frozenset({2}))
    if report.dead_letters_remark:
        yield f'<p class="soft">{text(report.dead_letters_remark)}</p>'
