"""Numbered events for pipelines with windows, and what any windows must hold of them, computed here from the events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from millstream.account import Account
from tests.spark_driver import SparkDriver
from tests.support.pipelines import PipelineRun, open_pipeline

LIMIT_S = 180.0
_POLL_S = 0.02
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BASE_S = 1_699_999_200
"""A full hour. Times of events and windows count from here."""
CONTENTS = (
    "SELECT key, count(*) AS c, sort_array(collect_list(value.n)) AS ns, window_start, window_end FROM window"
    " GROUP BY key, window_start, window_end"
)
"""A query whose results say exactly which events they are over."""
FUNCTIONS = """\
import json
import os

import millstream_udf as udf


def told(keys, records, window):
    numbers = sorted(json.loads(record.value)["n"] for record in records)
    bounds = {"window_start": window.start.isoformat(), "window_end": window.end.isoformat()}
    bounds["window_early"] = window.early
    return {"key": keys[0] if keys else None, "c": len(numbers), "ns": numbers, **bounds}


@udf.reduce
def contents(keys, records, window):
    return json.dumps(told(keys, records, window))


@udf.reduce
def picky(keys, records, window):
    row = told(keys, records, window)
    if 13 in row["ns"]:
        raise ValueError("13 is bad")
    return json.dumps(row)


def beside(name):
    return os.path.join(os.path.dirname(__file__), name)


@udf.reduce
def bad_until_mended(keys, records, window):
    row = told(keys, records, window)
    if 13 in row["ns"] and not os.path.exists(beside("fixed")):
        raise ValueError("13 is bad")
    return json.dumps(row)


@udf.reduce
def at_the_second_attempt(keys, records, window):
    row = told(keys, records, window)
    if 13 in row["ns"]:
        try:
            os.close(os.open(beside("tried"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return json.dumps(row)
        raise ValueError("13 is bad")
    return json.dumps(row)


@udf.map
def dressed(record):
    headers = {name: value.decode() for name, value in record.headers.items()}
    row = {"row": json.loads(record.value), "keys": list(record.keys), "headers": headers}
    return udf.Message(json.dumps({**row, "event_time_us": record.event_time_us}))
"""
"""Functions for maps and reduces, for a file beside the pipeline's."""
VALUE = "{format: json, fields: 'n BIGINT, t BIGINT, k STRING'}"


@dataclass(frozen=True, slots=True)
class Event:
    """A record: its value is this as JSON."""

    n: int
    """Different for every event."""
    s: float
    """Event time, seconds after BASE_S, to the millisecond."""
    k: str = ""

    @property
    def json(self) -> str:
        return json.dumps({"n": self.n, "t": time_ms(self.s), "k": self.k})


def time_ms(s: float) -> int:
    """Since 1970, of a time in seconds after BASE_S."""
    return round((BASE_S + s) * 1000)


Contents = Mapping[tuple[str, float, float], Sequence[int]]
"""(key, start, end) of every window, in seconds after BASE_S, with the numbers of its events, rising."""


def write_events(path: Path, events: Iterable[Event]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{event.json}\n" for event in events)


def source(name: str = "in", *, more: str = "") -> str:
    """YAML of a source vertex over `<name>*.jsonl`."""
    return (
        f"- name: {name}\n  source: {{file: {{paths: ['{name}*.jsonl'], format: jsonl{more}}},"
        " eventTime: {field: t, format: epoch_ms}, keys: [k]}\n"
    )


def reduce(
    window: str,
    *,
    name: str = "sum",
    query: str = CONTENTS,
    program: str | None = None,
    group_by: str = "keyed: true",
    more: str = "",
    lanes: str = "",
) -> str:
    """YAML of a reduce vertex. `program` instead of the query; `more` is YAML of the udf, `lanes` of the vertex."""
    program = program or f'sql: {{query: "{query}", value: {VALUE}}}'
    members = [f"groupBy: {{window: {window}, {group_by}}}", program, *([more] if more else [])]
    return f"- name: {name}\n  udf:\n" + "".join(f"    {member}\n" for member in members) + (lanes and f"  {lanes}\n")


def contents_of(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, float, float], list[int]]:
    """What the results of `CONTENTS` say; fails on a window that appears twice, or miscounted."""
    found: dict[tuple[str, float, float], list[int]] = {}
    for row in rows:
        name = (row["key"], seconds_of(row["window_start"]), seconds_of(row["window_end"]))
        assert name not in found, f"{name} twice: {found[name]} and {row['ns']}"
        assert row["c"] == len(row["ns"])
        found[name] = row["ns"]
    return found


def seconds_of(text: str) -> float:
    """Seconds after BASE_S of a time in RFC 3339."""
    return round((datetime.fromisoformat(text) - EPOCH - timedelta(seconds=BASE_S)) / timedelta(seconds=1), 3)


def sliding_contents(events: Iterable[Event], length: int, slide: int) -> Contents:
    """Windows [n * slide, n * slide + length); fixed ones where both are the same."""
    found: dict[tuple[str, float, float], list[int]] = {}
    for event in events:
        start = event.s // slide * slide
        while start + length > event.s:
            found.setdefault((event.k, start, start + length), []).append(event.n)
            start -= slide
    return {name: sorted(numbers) for name, numbers in found.items()}


def fixed_contents(events: Iterable[Event], length: int) -> Contents:
    return sliding_contents(events, length, length)


def session_contents(events: Iterable[Event], timeout: float) -> Contents:
    """Windows of one key whose events are less than `timeout` apart."""
    found: dict[tuple[str, float, float], list[int]] = {}
    for key, mine in _by_key(events).items():
        groups: list[list[Event]] = []
        for event in sorted(mine, key=lambda event: event.s):
            if groups and time_ms(event.s) - time_ms(groups[-1][-1].s) < timeout * 1000:
                groups[-1].append(event)
            else:
                groups.append([event])
        for group in groups:
            found[key, round(group[0].s, 3), round(group[-1].s + timeout, 3)] = sorted(event.n for event in group)
    return found


def counted(events: Iterable[Event], count: int) -> list[tuple[str, list[int]]]:
    """(key, numbers) of every so many events of a key, in their order, and the rest; sorted."""
    return sorted(
        (key, sorted(event.n for event in mine[first : first + count]))
        for key, mine in _by_key(events).items()
        for first in range(0, len(mine), count)
    )


def _by_key(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.k, []).append(event)
    return found


def steady(count: int, *, keys: int, per_s: int, place: Callable[[int], float] | None = None) -> list[Event]:
    """`count` events, so many in a second of event time, by turns of so many keys; `place` moves one in time."""
    return [Event(n, n / per_s + (place(n) if place else 0), f"k{n % keys}") for n in range(count)]


async def until(
    reached: Callable[[], Awaitable[bool]], running: asyncio.Future[None] | None = None, *, limit_s: float = LIMIT_S
) -> None:
    """Wait for something, as long as `running` does."""
    async with asyncio.timeout(limit_s):
        while not await reached():
            if running is not None and running.done():
                await running
                raise AssertionError("the pipeline has ended")
            await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def running(run: PipelineRun) -> AsyncIterator[asyncio.Future[None]]:
    """The pipeline runs inside the block, and finishes what is in flight at its end."""
    task = asyncio.ensure_future(run.run())
    try:
        yield task
        run.stop()
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def closed_past(run: PipelineRun, vertex: str, s: float, task: asyncio.Future[None]) -> None:
    """Wait until every result of a window that ends at or before `s` is committed."""
    limit_us = time_ms(s) * 1000 - 1

    async def reached() -> bool:
        return await run.published(vertex) >= limit_us

    await until(reached, task)


async def taken_in(run: PipelineRun, vertex: str, records: int, task: asyncio.Future[None]) -> None:
    """Wait until the vertex is done with so many records, or keeps them."""

    async def reached() -> bool:
        return (await run.account(vertex)).inputs >= records

    await until(reached, task)


async def account_of_run(path: Path, directory: Path, spark: SparkDriver) -> Account:
    """Run a pipeline to its end, and check that it balances. The account of its reduce `sum`."""
    async with open_pipeline(path, directory / "broker", spark=spark.address) as run:
        await run.run()
        await assert_balanced(run)
        return await run.account("sum")


async def assert_balanced(run: PipelineRun, *, open_records: int = 0) -> None:
    """Every vertex knows where everything went that it was sent; reduces hold so many records in all."""
    still_open = 0
    for vertex in run.graph.order:
        account = await run.account(vertex)
        assert account.difference == 0, (vertex, account)
        still_open += account.open
    assert still_open == open_records
