"""The report of a run: bounded, true to its figures, and nothing that users write becomes more than text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from millstream.account import Account
from millstream_runner.local.progress import VertexProgress
from millstream_runner.local.recording import POINTS_MAX, TROUBLES_MAX, Recording
from millstream_runner.local.summary import EdgeAccount, Summary, VertexAccount
from millstream_runner.pictures.charts import Line, line_chart
from millstream_runner.pictures.report import DeadLetters, Report, report_page
from tests.unit.local.pipelines import small

HOSTILE = (
    '</td></svg><script>alert(1)</script><img src=x onerror="alert(1)">\'"><a href="javascript:alert(1)">\x1b[2J\u202e&'
)
TAGS = (
    "html head meta title style body main h1 h2 p span br div svg desc g rect path text table thead tbody tr th td "
    "figure figcaption ul li pre"
)
ALLOWED = frozenset(TAGS.split())


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def figures(second: float, *, source_us: int | None = None, sink_us: int | None = None) -> list[VertexProgress]:
    """1,000 records a second; before the sink half of its buffer waits in every tenth second."""
    records = int(1000 * second)
    slow = int(second) % 10 == 0
    source = VertexProgress("in", "source", records, 1000.0, records, 0, 0.0, source_us, None, 0, (), has_input=False)
    between = VertexProgress("map", "map", records, 1000.0, records, 7, 0.1, None, None, 0, ())
    sink = VertexProgress(
        "out",
        "sink",
        records,
        1000.0,
        0,
        500 if slow else 5,
        0.5 if slow else 0.0,
        sink_us,
        None,
        0,
        (),
        has_output=False,
    )
    return [source, between, sink]


def of(recording: Recording, *, words: str = "", dead: int = 0) -> Report:
    graph = small().graph
    account = Account(inputs=10, processed=9, dropped={words: 1} if words else {})
    vertices = [VertexAccount(vertex.name, vertex.definition, account, 10, False) for vertex in graph.vertices]
    return Report(
        graph=graph,
        recording=recording,
        outcome=words or "done: everything has been processed",
        is_good=True,
        elapsed_s=100.0,
        began=words,
        summary=Summary(vertices, [EdgeAccount("in-map", 10, 9)], [words] if words else [], [words] if words else []),
        failure=words,
        dead_letters=[DeadLetters(words, words, 1, words, words) for _ in range(dead)],
        dead_letters_remark=words,
        environment={words: words},
        options={words: words},
    )


@pytest.mark.slow
def test_a_recording_is_bounded_and_its_rates_are_exact() -> None:
    recording = Recording()
    for tick in range(40_000):
        recording.take(tick / 2, figures(tick / 2))
    recording.finish()
    points = recording.points
    assert POINTS_MAX / 2 - 1 <= len(points) <= POINTS_MAX + 1
    assert points[0].at_s == 0.0
    assert points[-1].at_s == 39_999 / 2
    times = [point.at_s for point in points]
    assert times == sorted(set(times))
    # About as far apart from each other, from the first hour to the last.
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert max(gaps[:-1]) <= 3 * min(gaps[:-1])
    assert points[-1].vertices["out"].records == int(1000 * points[-1].at_s)
    # Peaks stay, however far apart the points are.
    assert all(point.vertices["out"].waiting == 500 for point in points[1:-1])
    assert recording.slow_s["out"] == pytest.approx(2_000, rel=0.01)
    assert set(recording.slow_s) == {"out"}


def test_the_delay_is_how_long_ago_the_sources_were_where_the_sinks_are() -> None:
    recording = Recording()
    for second in range(60):
        # Event time goes ten times as fast as the clock, and the sink is four seconds behind.
        source, sink = second * 10_000_000, max(0, second - 4) * 10_000_000
        recording.take(float(second), figures(second, source_us=source, sink_us=sink))
    assert [point.delay_s for point in recording.points[10:]] == pytest.approx([3.0] * 50, abs=1.01)
    none = Recording()
    none.take(0.0, figures(0))
    assert none.points[0].delay_s is None


def test_many_troubles_are_counted_and_not_kept() -> None:
    recording = Recording()
    for number in range(3 * TROUBLES_MAX):
        for _ in range(2):
            recording.entry(float(number), {"level": "error", "process": "map-0", "message": f"text {number}"})
    assert len(recording.troubles) == TROUBLES_MAX
    assert all(trouble.count == 2 for trouble in recording.troubles.values())
    assert recording.troubles_left_out == 4 * TROUBLES_MAX


def test_nothing_that_users_write_becomes_more_than_text() -> None:
    recording = Recording()
    for second in range(5):
        recording.take(float(second), [replace(one, vertex=one.vertex) for one in figures(second)])
    recording.states.append((0.0, HOSTILE))
    recording.entry(1.0, {"level": HOSTILE, "process": HOSTILE, "message": HOSTILE, "code": HOSTILE})
    text = report_page(of(recording, words=HOSTILE, dead=3))
    page = Page(text)
    assert page.tags <= ALLOWED
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "src", "style")]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert any("<script>alert(1)</script>" in one for one in page.texts)
    assert "default-src 'none'" in text


def test_no_picture_changes_how_another_looks() -> None:
    """The rules of an SVG apply to the whole page that contains it."""
    recording = Recording()
    for second in range(5):
        recording.take(float(second), figures(second))
    of_page, *of_pictures = re.findall(r"<style>(.*?)</style>", report_page(of(recording)), re.DOTALL)
    assert "body{" in of_page
    assert len(of_pictures) >= 2
    for rules in of_pictures:
        selectors = re.findall(r"([^{}@;]+)\{(?!\s*[.@])", rules.replace("\n", ""))
        assert selectors
        assert [one for group in selectors for one in group.split(",") if not one.strip().startswith(".")] == []


def test_a_page_is_bounded_however_much_there_was() -> None:
    recording = Recording()
    for tick in range(3 * POINTS_MAX):
        recording.take(tick / 2, figures(tick / 2, source_us=tick, sink_us=tick - 1))
    for number in range(2 * TROUBLES_MAX):
        recording.entry(1.0, {"level": "error", "process": "map-0", "message": f"{number} " + "x" * 100_000})
    assert len(report_page(of(recording))) < 1_000_000


def test_a_chart_says_what_it_shows_and_where_figures_are_missing() -> None:
    times = [0.0, 10.0, 20.0, 30.0, 40.0]
    lines = [Line("a", [1.0, 2.0, None, 4.0, 5.0]), Line("b", [None] * 5), Line("c", [0.0, 0.0, 0.0, 0.0, 12_345.0])]
    chart = line_chart("rates", "Records", "records per second", times, lines)
    assert "a: 3 records per second on average, 5 at most" in chart
    assert ">15k<" in chart
    assert ">00:40<" in chart
    # The line of a has a gap, and b, of which there is nothing, is not drawn.
    drawn = [part for part in chart.split("<path") if "<title>a<" in part]
    assert drawn[0].count("M") == 2
    assert "<title>b<" not in chart
    assert "1 more" in chart
    many = [Line(f"line {number}", [float(number)] * 5) for number in range(30)]
    assert "22 more" in line_chart("rates", "Records", "records", times, many)
    assert "too few figures" in line_chart("rates", "Records", "records", [0.0], [Line("a", [1.0])])
