"""Small pipelines that are killed at every durable step, and what their outputs must be however often that happens.

Each is a `CrashPipeline`: its file, what is fed to it while it runs, and a check of everything it leaves behind. They
run in processes of their own (`crash_process`), whose vertices, forked in milliseconds, die together.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from millstream.dead_letter import read_envelope
from millstream.frame import partition_of
from tests.mesh.conftest import PipelineFiles
from tests.mesh.reducing import (
    BASE_S,
    CONTENTS,
    Event,
    contents_of,
    fixed_contents,
    reduce,
    seconds_of,
    session_contents,
    sliding_contents,
    source,
    write_events,
)
from tests.recovery.crash_outside import OUTSIDE
from tests.recovery.crash_pipeline import TAKEN, TARGET, CrashPipeline, Outputs, file_sink, until

KEYS = ("k2", "k3", "k4", "k5")
"""Two of them for each of two partitions."""


def _events(times: Iterable[float], first: int) -> list[Event]:
    return [Event(first + n, s, KEYS[n % len(KEYS)]) for n, s in enumerate(times)]


# A map that fans out, bounded: two sinks, each behind the source and the map, hold the same records, and the run ends
# by itself. Files are taken away after every kill: how far a lane is stands elsewhere too.

_NUMBERS = 60


def _check_map(outputs: Outputs) -> None:
    expected = sorted([*range(_NUMBERS), *range(_NUMBERS)])
    assert sorted(row["number"] for row in outputs.rows("out")) == expected
    assert sorted(row["number"] for row in outputs.values("columns")) == expected


def _take_files(directory: Path) -> None:
    for file in [*(directory / "out").glob("*.jsonl"), *(directory / "columns").glob("*.parquet")]:
        taken = directory / TAKEN / file.parent.name
        taken.mkdir(parents=True, exist_ok=True)
        assert not (taken / file.name).exists(), f"{file.name} a second time"
        file.rename(taken / file.name)


MAP = CrashPipeline(
    PipelineFiles.generator(_NUMBERS, keyCount=8)
    + "- name: map\n  udf: {builtin: {name: cat}}\n  partitions: 2\n"
    + file_sink("out", 25)
    + file_sink("columns", 100, "parquet"),
    ["in -> map", "in -> out", "in -> columns", "map -> out", "map -> columns"],
    _check_map,
    between=_take_files,
)


# The same number of records through two chains: one behind the source, with dead letters from its middle, and one
# behind a buffer, with outputs that become two, or none, and go on by their keys.


def _check_chains(outputs: Outputs) -> None:
    good = [number for number in range(_NUMBERS) if number % 10 not in (1, 2, 3) and number % 3]
    expected = sorted((number, copy) for number in good for copy in range(2))
    assert sorted((row["number"], row["copy"]) for row in outputs.rows("out")) == expected
    assert sorted((value["number"], value["copy"]) for value in outputs.values("columns")) == expected
    dead = [read_envelope(json.dumps(row)) for row in outputs.rows("dead")]
    assert sorted(json.loads(one.value)["number"] for one in dead) == [n for n in range(_NUMBERS) if n % 10 in (1, 3)]
    assert len({one.position for one in dead}) == len(dead)


CHAINS = CrashPipeline(
    PipelineFiles.generator(_NUMBERS, keyCount=8)
    + "- name: first\n  udf: {builtin: {name: cat}}\n"
    + PipelineFiles.function("picky", vertex="picky", more=", retryStrategy: {backoff: {interval: 1ms, steps: 2}}")
    + PipelineFiles.function("twice_or_not", vertex="map")
    + "  partitions: 2\n"
    + "- name: last\n  udf: {builtin: {name: cat}}\n  partitions: 2\n"
    + file_sink("out", 25)
    + file_sink("columns", 100, "parquet")
    + file_sink("dead", 5),
    [
        *("{from: in, to: first, chain: true}", "{from: first, to: picky, chain: true}", "picky -> map"),
        *("{from: map, to: last, chain: true}", "last -> out", "last -> columns"),
        "{from: picky, to: dead, kind: deadLetter}",
    ],
    _check_chains,
)


# Chains that end in a sink: one from the source on, whose function gives other records at every attempt, and one behind
# the buffer of its dead letters. Files are taken away as they are finished, so that only positions say how far it is.


def check_whims(rows: Sequence[Mapping[str, Any]], numbers: Iterable[int]) -> None:
    """All that the function gave for a number at one attempt is there, once, and nothing of another attempt."""
    whims: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        whims.setdefault(row["number"], []).append(row)
    assert whims.keys() == {number for number in numbers if number % 7}
    for found in whims.values():
        assert len({row["whim"] for row in found}) == 1, found
        assert [row["copy"] for row in found] == [*range(found[0]["of"])], found


def _check_unbuffered(outputs: Outputs) -> None:
    check_whims(outputs.rows("out"), (number for number in range(_NUMBERS) if number % 10 not in (1, 2, 3)))
    dead = sorted(row["number"] for row in outputs.values("columns"))
    assert dead == [number for number in range(_NUMBERS) if number % 10 in (1, 3)]


UNBUFFERED = CrashPipeline(
    # Slowly, so that every owner cuts it in other places, and makes several deliveries on a slow machine, too.
    PipelineFiles.generator(_NUMBERS, keyCount=8, rpu=30)
    + PipelineFiles.function("picky", vertex="picky", more=", retryStrategy: {backoff: {interval: 1ms, steps: 2}}")
    + PipelineFiles.function("whimsical", vertex="whim")
    + file_sink("out", 25)
    + "- name: same\n  udf: {builtin: {name: cat}}\n"
    + file_sink("columns", 5, "parquet"),
    [
        *("{from: in, to: picky, chain: true}", "{from: picky, to: whim, chain: true}"),
        *("{from: whim, to: out, chain: true}", "{from: picky, to: same, kind: deadLetter}"),
        "{from: same, to: columns, chain: true}",
    ],
    _check_unbuffered,
    between=_take_files,
)


# What a function remembers: its changelog is in its commits, and trimmed behind them.

_STATE_KEYS = 8


def _check_state(outputs: Outputs) -> None:
    totals: dict[str, list[int]] = {}
    for row in outputs.rows("out"):
        totals.setdefault(row["key"], []).append(row["total"])
    assert totals == {f"key-{key}": list(accumulate(range(key, _NUMBERS, _STATE_KEYS))) for key in range(_STATE_KEYS)}


STATE = CrashPipeline(
    # Slowly, so that there are several commits.
    PipelineFiles.generator(_NUMBERS, keyCount=_STATE_KEYS, rpu=60)
    + PipelineFiles.function("Totals", vertex="remember", more=", state: {}")
    + "  partitions: 2\n"
    + file_sink("out", 25),
    ["in -> remember", "remember -> out"],
    _check_state,
)


# Commits that are packs: the outputs of a record are too many for a frame, and go to one copy. It is read in parts by a
# map and by a sink without positions, and as a whole by windows.

_PACKED_NUMBERS = 8
_PACKED_COPIES = 4200


def _check_packs(outputs: Outputs) -> None:
    expected = Counter((number, copy) for number in range(_PACKED_NUMBERS) for copy in range(_PACKED_COPIES))
    assert Counter((row["number"], row["copy"]) for row in outputs.rows("out")) == expected
    assert Counter((row["number"], row["copy"]) for row in outputs.values("columns")) == expected
    assert Counter((row["number"], row["copy"]) for row in outputs.received()) == expected
    counts = sorted((row["key"], row["c"]) for row in outputs.rows("counts"))
    assert counts == [(f"key-{key}", _PACKED_NUMBERS // 4 * _PACKED_COPIES) for key in range(4)]


PACKS = CrashPipeline(
    PipelineFiles.generator(_PACKED_NUMBERS, keyCount=4)
    + PipelineFiles.function("many", vertex="many")
    + "  limits: {readBatchSize: 2}\n"
    + "- name: next\n  udf: {builtin: {name: cat}}\n"
    + reduce("{global: {}}", program="sql: {query: 'SELECT key, count(*) AS c FROM window GROUP BY key'}")
    + file_sink("out", 9000)
    + file_sink("columns", 9000, "parquet")
    + f"- name: delivered\n  sink: {{http: {{url: '{TARGET}', batch: {{maxRecords: 1000}}}}}}\n"
    + file_sink("counts", 2),
    [
        *("in => many", "many -> next", "many -> sum", "many -> columns", "many -> delivered"),
        *("next -> out", "sum -> counts"),
    ],
    _check_packs,
    packed="many",
)


# Commits with frames that are stored apart, which a map reads in two partitions and a sink without positions in one.

_SPREAD_NUMBERS = 8
_SPREAD_COPIES = 1000


def _check_references(outputs: Outputs) -> None:
    expected = Counter((number, copy) for number in range(_SPREAD_NUMBERS) for copy in range(_SPREAD_COPIES))
    assert Counter((row["number"], row["copy"]) for row in outputs.rows("out")) == expected
    assert Counter((row["number"], row["copy"]) for row in outputs.received()) == expected


REFERENCES = CrashPipeline(
    PipelineFiles.generator(_SPREAD_NUMBERS, keyCount=4)
    + PipelineFiles.function("spread", vertex="spread")
    + "  limits: {readBatchSize: 2}\n"
    + "- name: next\n  partitions: 2\n  udf: {builtin: {name: cat}}\n"
    + file_sink("out", 2000)
    + f"- name: delivered\n  sink: {{http: {{url: '{TARGET}', batch: {{maxRecords: 1000}}}}}}\n",
    ["in => spread", "spread -> next", "spread -> delivered", "next -> out"],
    _check_references,
    apart="spread",
)


# Windows over two partitions, with a sink for their results, one for late records and one for everything that came.

_FIRST = _events((n / 2 for n in range(60)), 0)
_LATE = _events((3, 13, 3.5, 14, 2, 12), len(_FIRST))
"""Behind the watermark, which `_FIRST` has moved: late for those windows that have closed."""
_SECOND = _events((25, 26, 27, 28, 41, 41, 41, 41), len(_FIRST) + len(_LATE))
"""Older than the watermark, and in time for the third window; then what closes it."""


def windows(
    length: int, slide: int, *, group_by: str = "", lateness: int = 0, partitions: int = 2, **more: Any
) -> CrashPipeline:
    """Sliding windows, which are fixed ones where `slide` is their length. `group_by` and `more` add to their spec."""
    group_by = f"keyed: true, onLate: edge, allowedLateness: {lateness}s" + (group_by and f", {group_by}")
    closed_s, closed_at_last_s = _FIRST[-1].s - lateness, _SECOND[-1].s - lateness
    late = [event for event in _LATE if event.s // slide * slide + length <= closed_s]
    early = [(name, ns) for name, ns in sliding_contents(_FIRST, length, slide).items() if name[2] <= closed_s]
    in_time = [event for event in (*_FIRST, *_LATE, *_SECOND) if event not in late]
    expected = {
        name: ns for name, ns in sliding_contents(in_time, length, slide).items() if name[2] <= closed_at_last_s
    }
    # What was late for one of its windows only is in the others.
    expected.update(early)
    everything = Counter(event.n for event in (*_FIRST, *_LATE, *_SECOND))

    async def feed(outputs: Outputs) -> None:
        await until(lambda: len(outputs.rows("out")) >= len(early))
        _feed_at_once(outputs.directory)
        await until(lambda: len(outputs.rows("out")) >= len(expected))
        await until(lambda: len(outputs.rows("late")) >= len(late))
        await until(lambda: len(outputs.values("columns")) >= everything.total())

    def check(outputs: Outputs) -> None:
        assert contents_of(outputs.rows("out")) == expected
        assert Counter(row["n"] for row in outputs.rows("late")) == Counter(event.n for event in late)
        assert Counter(row["n"] for row in outputs.values("columns")) == everything

    window = f"{{sliding: {{length: {length}s, slide: {slide}s}}}}"
    return CrashPipeline(
        source(more=", follow: true")
        + "- name: map\n  udf: {builtin: {name: cat}}\n"
        + reduce(window, group_by=group_by, lanes=f"partitions: {partitions}")
        + file_sink("out", len(KEYS))
        + file_sink("late", 2)
        + file_sink("columns", 24, "parquet"),
        ["in => map", "map -> sum", "map -> columns", "sum -> out", "{from: sum, to: late, kind: late}"],
        check,
        open_records=sum(event.s // slide * slide + length > closed_at_last_s for event in in_time),
        prepare=lambda directory: write_events(directory / "in.jsonl", _FIRST),
        feed=feed,
        **more,
    )


def _lose_logs(directory: Path) -> None:
    shutil.rmtree(directory / "windows", ignore_errors=True)


def _feed_at_once(directory: Path) -> None:
    """What is late for windows that were handed over comes before they are handed over again."""
    _feed_behind(directory, _FIRST, (*_LATE, *_SECOND))


def _feed_behind(directory: Path, events: Sequence[Event], more: Iterable[Event], *, name: str = "in") -> None:
    """Unless that has been done."""
    file = directory / f"{name}.jsonl"
    if len(file.read_text().splitlines()) == len(events):
        write_events(file, more)


# Sessions whose logs are lost with every kill: which session a record is in depends on which were closed when it came.

_SESSION_S = 5
_BURSTS = _events((s for s in (*range(5), *range(20, 25), 30) for _ in KEYS), 0)
_STRAGGLERS = _events((s for s in (5, 22, 26) for _ in KEYS), len(_BURSTS))
"""The first two are late. The third would join the second burst, whose session has closed; it joins the next one."""
_LAST = _events((41 for _ in KEYS), len(_BURSTS) + len(_STRAGGLERS))


def _lost_sessions() -> CrashPipeline:
    late, joining = _STRAGGLERS[: -len(KEYS)], _STRAGGLERS[-len(KEYS) :]
    closed = [event for event in _BURSTS if event.s < 30]
    early = session_contents(closed, _SESSION_S)
    expected = {**early, **session_contents([*_BURSTS[len(closed) :], *joining], _SESSION_S)}

    async def feed(outputs: Outputs) -> None:
        await until(lambda: len(outputs.rows("out")) >= len(early))
        _feed_behind(outputs.directory, _BURSTS, (*_STRAGGLERS, *_LAST))
        await until(lambda: len(outputs.rows("out")) >= len(expected))
        await until(lambda: len(outputs.rows("late")) >= len(late))

    def check(outputs: Outputs) -> None:
        assert contents_of(outputs.rows("out")) == expected
        assert Counter(row["n"] for row in outputs.rows("late")) == Counter(event.n for event in late)

    return CrashPipeline(
        source(more=", follow: true")
        + reduce(
            f"{{session: {{timeout: {_SESSION_S}s}}}}",
            group_by="keyed: true, onLate: edge, keepInput: true",
            lanes="partitions: 2",
        )
        + file_sink("out", len(KEYS))
        + file_sink("late", 2),
        ["in -> sum", "sum -> out", "{from: sum, to: late, kind: late}"],
        check,
        open_records=len(_LAST),
        prepare=lambda directory: write_events(directory / "in.jsonl", _BURSTS),
        feed=feed,
        between=_lose_logs,
    )


# Two sources that meet three times: at the windows, of which one comes to them through a map; at the sink of everything
# that came, which has the late records too; and at the sink of the results, which has the windows of two reduces.


_SIDES = ("in", "beside")


def _side(event: Event) -> str:
    """The source that reads it: each has records of every key."""
    return _SIDES[event.n // len(KEYS) % 2]


def _on_side(side: str, events: Iterable[Event]) -> list[Event]:
    return [event for event in events if _side(event) == side]


def _joined(*, group_by: str = "", **more: Any) -> CrashPipeline:
    """Fixed windows of both sources, and those of the first source alone."""
    length = 10
    group_by = "keyed: true, onLate: edge" + (group_by and f", {group_by}")
    closed_s = min(_on_side(side, _FIRST)[-1].s for side in _SIDES)
    closed_at_last_s = _SECOND[-1].s
    late = [event for event in _LATE if event.s // length * length + length <= closed_s]
    in_time = [event for event in (*_FIRST, *_LATE, *_SECOND) if event not in late]

    def expected_of(events: Sequence[Event], until_s: float) -> dict[tuple[str, float, float], Sequence[int]]:
        return {name: ns for name, ns in fixed_contents(events, length).items() if name[2] <= until_s}

    both, one = expected_of(in_time, closed_at_last_s), expected_of(_on_side("in", in_time), closed_at_last_s)
    first = len(expected_of(_FIRST, closed_s)) + len(expected_of(_on_side("in", _FIRST), closed_s))
    # Each reduce reports what is late for it.
    everything = Counter(event.n for event in (*_FIRST, *_LATE, *_SECOND, *late, *_on_side("in", late)))

    async def feed(outputs: Outputs) -> None:
        await until(lambda: len(outputs.rows("out")) >= first)
        for side in _SIDES:
            more = _on_side(side, (*_LATE, *_SECOND))
            _feed_behind(outputs.directory, _on_side(side, _FIRST), more, name=side)
        await until(lambda: len(outputs.rows("out")) >= len(both) + len(one))
        await until(lambda: len(outputs.values("columns")) >= everything.total())

    def prepare(directory: Path) -> None:
        for side in _SIDES:
            write_events(directory / f"{side}.jsonl", _on_side(side, _FIRST))

    def check(outputs: Outputs) -> None:
        rows = outputs.rows("out")
        assert contents_of(row for row in rows if row["of"] == "both") == both
        assert contents_of(row for row in rows if row["of"] == "one") == one
        assert Counter(row["n"] for row in outputs.values("columns")) == everything

    def windows_of(name: str, sources: str, lanes: str) -> str:
        query = CONTENTS.replace(" FROM", f", '{sources}' AS of FROM")
        return reduce(f"{{fixed: {{length: {length}s}}}}", name=name, query=query, group_by=group_by, lanes=lanes)

    return CrashPipeline(
        source(more=", follow: true")
        + source("beside", more=", follow: true")
        + "- name: map\n  udf: {builtin: {name: cat}}\n"
        + windows_of("sum", "both", "partitions: 2")
        + windows_of("single", "one", "partitions: 1")
        + file_sink("out", len(KEYS))
        + file_sink("columns", 24, "parquet"),
        [
            *("in -> map", "map -> sum", "beside -> sum", "in -> single"),
            *("map -> columns", "beside -> columns", "sum -> out", "single -> out"),
            *("{from: sum, to: columns, kind: late}", "{from: single, to: columns, kind: late}"),
        ],
        check,
        open_records=sum(
            event.s // length * length + length > closed_at_last_s for event in (*in_time, *_on_side("in", in_time))
        ),
        prepare=prepare,
        feed=feed,
        **more,
    )


# Early results, over a log of many short segments.

_STEADY = 240
_STEP_S = 0.25
_NUMBERED = "SELECT {}, count(*) AS c, sort_array(collect_list(value.number)) AS ns, {} FROM window GROUP BY {}"
_EARLY = _NUMBERED.format(
    "key", "window_start, window_end, window_early", "key, window_start, window_end, window_early"
)
_VALUE = "{format: json, fields: 'number BIGINT'}"


def _sql(query: str) -> str:
    return f'sql: {{query: "{query}", value: {_VALUE}}}'


_EARLY_COUNT = 12
_EARLY_LANES = 2


def _check_counts(rows: Iterable[Mapping[str, Any]]) -> None:
    """Each early result of a window is over so many records more than the one before, in its lane."""
    records: dict[tuple[str, int], Counter[int]] = {}
    for row in rows:
        lane = partition_of([row["key"].encode()], _EARLY_LANES)
        counted = records.setdefault((row["window_start"], lane), Counter())
        counted[row["window_early"]] += row["c"]
    for window, counted in records.items():
        sizes = [0, *(counted[number] for number in sorted(counted) if number)]
        assert all(after - before >= _EARLY_COUNT for before, after in pairwise(sizes)), (window, sizes)


def _check_early(outputs: Outputs) -> None:
    rows = outputs.rows("out")
    final = contents_of(row for row in rows if row["window_early"] == 0)
    numbers = {(start, end): [] for _, start, end in final}  # type: dict[tuple[float, float], list[int]]
    for (_, start, end), ns in final.items():
        numbers[start, end] += ns
    expected = {(10.0 * n, 10.0 * (n + 1)): list(range(40 * n, 40 * (n + 1))) for n in range(_STEADY // 40)}
    assert {window: sorted(ns) for window, ns in numbers.items()} == expected
    windows: dict[tuple[str, float, float], list[tuple[int, list[int]]]] = {}
    for row in rows:
        window = row["key"], seconds_of(row["window_start"]), seconds_of(row["window_end"])
        windows.setdefault(window, []).append((row["window_early"], row["ns"]))
    _check_counts(rows)
    firsts: dict[tuple[float, float], set[int]] = {}
    for window, results in windows.items():
        early = sorted(result for result in results if result[0])
        if early:
            # A key's first record may come after early results that its window has made of other keys.
            first = early[0][0]
            firsts.setdefault(window[1:], set()).add(first)
            assert [number for number, _ in early] == list(range(first, first + len(early))), window
        assert all(set(a[1]) <= set(b[1]) for a, b in pairwise(early)), window
        assert all(set(ns) <= set(final[window]) for _, ns in early), window
    assert all(min(numbers) == 1 for numbers in firsts.values()), firsts


def _early(group_by: str = "", **more: Any) -> CrashPipeline:
    return CrashPipeline(
        PipelineFiles.generator(
            _STEADY, keyCount=8, rpu=1200, start=datetime.fromtimestamp(BASE_S, UTC).isoformat(), eventTimeStep="250ms"
        )
        + reduce(
            "{fixed: {length: 10s, streaming: true}}",
            program=_sql(_EARLY),
            group_by=f"keyed: true, early: {{count: {_EARLY_COUNT}}}" + group_by,
            lanes=f"partitions: {_EARLY_LANES}",
        )
        + file_sink("out", 20),
        ["in -> sum", "sum -> out"],
        _check_early,
        **more,
    )


# Results that are larger than a commit.

_LARGE_KEYS = 12
_LARGE_BYTES = 800_000


def _check_large(outputs: Outputs) -> None:
    rows = outputs.rows("out")
    assert {row["key"]: row["ns"] for row in rows} == {
        f"key-{key}": list(range(key, _NUMBERS, _LARGE_KEYS)) for key in range(_LARGE_KEYS)
    }
    assert len(rows) == _LARGE_KEYS
    assert all(len(row["filler"]) == _LARGE_BYTES for row in rows)


LARGE = CrashPipeline(
    PipelineFiles.generator(_NUMBERS, keyCount=_LARGE_KEYS)
    + reduce(
        "{global: {}}",
        program=_sql(_NUMBERED.format("key", f"repeat('.', {_LARGE_BYTES}) AS filler", "key")),
    )
    + file_sink("out", 5),
    ["in -> sum", "sum -> out"],
    _check_large,
)

PIPELINES = {
    "windows": windows(10, 10),
    "map": MAP,
    "chains": CHAINS,
    "unbuffered": UNBUFFERED,
    "state": STATE,
    "packs": PACKS,
    "references": REFERENCES,
    "outside": OUTSIDE,
    "early": _early(),
    "large": LARGE,
    "lost": windows(10, 10, group_by="keepInput: true", between=_lose_logs),
    "lost_sliding": windows(20, 10, group_by="keepInput: true", between=_lose_logs),
    "lost_sessions": _lost_sessions(),
    "lost_early": _early(", keepInput: true", between=_lose_logs),
    "joined": _joined(),
    "lost_joined": _joined(group_by="keepInput: true", between=_lose_logs),
    "frozen": windows(10, 10, lateness=5, partitions=1, between=_feed_at_once),
}
SWEPT = tuple(name for name in PIPELINES if name != "frozen")
"""Those that may be killed anywhere: what is late for the last one depends on where it is."""
SHORT_SEGMENTS = frozenset({"early"})
"""Pipelines whose reduce lanes keep their records in segments of a few entries."""
