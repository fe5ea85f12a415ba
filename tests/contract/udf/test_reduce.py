"""The reduce client against reduce functions in Python and Go, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from millstream import codes
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import LocalFunction
from millstream.udf.native import reduce_client
from millstream.udf.native.reduce_client import UdfReduction, reduce_over_grpc
from millstream.udf.native.reduce_stream import FunctionLostError
from millstream.udf.sidecar import python_command
from millstream.wire.reduce.v1 import engine_pb2
from millstream_udf.groups import FrameRows, Group, Part
from millstream_udf.reducing import Answer
from millstream_udf.values import Message, Window
from tests.contract.udf.conftest import HERE, NAME, Lines, Open, frame_of
from tests.support.children import together
from tests.support.errors import raises

MIB = 1 << 20
RESTART_S = 30.0
WINDOW = Window(60_000_000, 120_000_000)


def group(*keys: str) -> Group:
    return Group(WINDOW, keys)


def part(
    groups: Mapping[Group, Sequence[bytes]], *, more_of: Sequence[bytes] | None = None, unfinished: bool = False
) -> Part:
    """Whole groups, behind the rest of one that the part before left open."""
    values = [*(more_of or ()), *(value for values in groups.values() for value in values)]
    counts = [*([] if more_of is None else [len(more_of)]), *map(len, groups.values())]
    return Part(list(groups), counts, FrameRows(frame_of(values).encode() if values else b""), unfinished)


Results = dict[Group, list[bytes | Message]]


def results_of(answers: Iterable[Answer]) -> tuple[Results, dict[Group, str]]:
    """What groups gave, and why others did not."""
    results: Results = {}
    failures: dict[Group, str] = {}
    for answer in answers:
        left = iter(answer.results)
        for one, count in zip(answer.groups, answer.counts, strict=True):
            results.setdefault(one, []).extend(_plain(one, result) for result in islice(left, count))
        for failure in answer.failures:
            failures[answer.groups[failure.index]] = failure.error
    return {one: some for one, some in results.items() if one not in failures}, failures


def _plain(one: Group, result: bytes | Message) -> bytes | Message:
    """A message that says no more than its value, as the value: SDKs differ in what they leave out."""
    if isinstance(result, Message) and result == Message(result.value, keys=one.keys):
        return result.value
    return result if isinstance(result, bytes) or result.keys is not None else Message(result.value, one.keys)


def counted(one: Group, values: Sequence[bytes], times: tuple[int, int], *, own: str | None = None) -> bytes:
    """What the function says of a group it counts."""
    keys = "/".join(one.keys)
    return (
        f"{len(values)} records, {sum(map(len, values))} bytes, 0 headers, {keys} "
        f"{'/'.join(sorted(one.keys)) if own is None else own}, {one.window.start_us} to {one.window.end_us} early "
        f"{one.window.early}, {times[0]} to {times[1]}"
    ).encode()


@pytest_asyncio.fixture
async def sidecar(reduce_command: list[str], open_function: Open) -> AsyncIterator[LocalFunction]:
    """The reduce function, running."""
    async with open_function(reduce_command) as running:
        yield running


def program(sidecar: LocalFunction) -> engine_pb2.UdfProgram:
    return engine_pb2.UdfProgram(
        address=sidecar.address, pipeline=NAME.pipeline, vertex=NAME.vertex, lane="window.0", replica=0
    )


async def reduced(sidecar: LocalFunction, parts: Iterable[Part]) -> tuple[Results, dict[Group, str]]:
    """Through the client, in a thread of its own as in a Spark worker."""
    return await asyncio.to_thread(lambda: results_of(reduce_over_grpc(program(sidecar), parts)))


async def test_groups_in_one_message_and_one_over_many(sidecar: LocalFunction) -> None:
    assert sidecar.description.kinds == {FunctionKind.REDUCE}
    small = {group(str(key)): [b"%d" % key] * (1 + key % 3) for key in range(500)}
    large = group("large", "one")
    chunk = [b"%0100d" % index for index in range(4000)]
    early = Group(Window(0, 1, 3), ("é",))

    def parts() -> Iterator[Part]:
        yield part({**small, large: chunk}, unfinished=True)
        for _ in range(8):
            yield part({}, more_of=chunk, unfinished=True)
        yield part({early: [b"1"]}, more_of=chunk)

    results, failures = await reduced(sidecar, parts())
    assert failures == {}
    assert list(results) == [*small, large, early]
    assert results[large] == [counted(large, chunk * 10, (1000 + sum(map(len, small.values())), 4999))]
    assert results[early] == [counted(early, [b"1"], (5000, 5000))]
    at = 1000
    for one, values in small.items():
        assert results[one] == [counted(one, values, (at, at + len(values) - 1))]
        at += len(values)


async def test_keys_and_headers_of_records_come_along(sidecar: LocalFunction) -> None:
    frame = frame_of(
        [b"1", b"2", b"3"], keys=[[b"a"], [b"b", b"c"], []], headers=[{}, {"x": b"1", "y": b"2"}, {"z": b""}]
    )
    whole = group()
    results, _ = await reduced(sidecar, [Part([whole], [3], FrameRows(frame.encode()))])
    assert results[whole] == [b"3 records, 3 bytes, 3 headers,  a/b/c, 60000000 to 120000000 early 0, 1000 to 1002"]


async def test_results_with_keys_tags_and_headers(sidecar: LocalFunction) -> None:
    one, other = group("k"), group("l")
    results, _ = await reduced(sidecar, [part({one: [b"dress:yes"], other: [b"none"]})])
    assert results[one] == [Message(b"yes", ["new", "key"], ["late", "red"], {"colour": b"red"}), b"plain"]
    assert results[other] == []


async def test_an_error_is_of_its_own_group(sidecar: LocalFunction) -> None:
    groups = {group(str(key)): [b"fail:%d" % key if key in (3, 7) else b"1", b"2"] for key in range(10)}
    results, failures = await reduced(sidecar, [part(groups)])
    assert set(failures) == {group("3"), group("7")}
    assert "failed: 3" in failures[group("3")]
    assert list(results) == [one for one in groups if one not in failures]


async def test_an_error_in_a_group_over_many_messages(sidecar: LocalFunction) -> None:
    chunk = [b"x" * 1000] * 2000
    bad, good = group("bad"), group("good")
    parts = [part({bad: [b"fail:at once", *chunk]}, unfinished=True), part({}, more_of=chunk, unfinished=True)]
    results, failures = await reduced(sidecar, [*parts, part({good: [b"1"]}, more_of=chunk)])
    assert list(failures) == [bad]
    assert list(results) == [good]


async def test_a_function_need_not_read_all(sidecar: LocalFunction) -> None:
    chunk = [b"x" * 1000] * 2000
    one, other = group("a"), group("b")
    parts = [part({one: [b"early", *chunk]}, unfinished=True), part({other: [b"1"]}, more_of=chunk)]
    results, _ = await reduced(sidecar, parts)
    assert results[one] == [b"early"]
    assert results[other] == [counted(other, [b"1"], (3000, 3000))]


async def test_a_group_without_records_is_never_sent(sidecar: LocalFunction) -> None:
    empty, one, slow = group("empty"), group("one"), group("slow")
    # The last one begins without a record and gets its first two parts later.
    parts = [
        part({empty: [], one: [b"1"], slow: []}, unfinished=True),
        part({}, more_of=[], unfinished=True),
        part({group("none"): []}, more_of=[b"2"]),
        part({group("never"): []}, unfinished=True),
        part({}, more_of=[]),
    ]
    results, failures = await reduced(sidecar, parts)
    assert failures == {}
    assert list(results) == [one, slow]
    assert results[slow] == [counted(slow, [b"2"], (1000, 1000))]


async def test_nothing_is_opened_for_nothing(sidecar: LocalFunction) -> None:
    reduction = UdfReduction(engine_pb2.UdfProgram(address="unix:/nowhere/at/all"))
    assert list(reduction.run([part({group("empty"): []})])) == []


async def test_more_results_than_one_message_holds(sidecar: LocalFunction) -> None:
    one, other = group("a"), group("b")
    results, _ = await reduced(sidecar, [part({one: [b"many:50000"], other: [b"1"]})])
    assert results[one] == [b"%0100d" % index for index in range(50_000)]
    assert len(results[other]) == 1


async def test_a_result_that_is_no_record(sidecar: LocalFunction) -> None:
    results, failures = await reduced(sidecar, [part({group("a"): [b"large"], group("b"): [b"1"]})])
    assert "8,388,608 bytes; the maximum is 7,340,032" in failures[group("a")]
    assert list(results) == [group("b")]


async def test_a_function_killed_in_the_middle_of_a_group(sidecar: LocalFunction) -> None:
    chunk = [b"x" * 1000] * 2000
    small = {group(str(key)): [b"1"] for key in range(100)}
    large, last = group("large"), group("last")

    def parts() -> Iterator[Part]:
        yield part(small)
        yield part({large: chunk}, unfinished=True)
        yield part({}, more_of=chunk, unfinished=True)
        pid = sidecar.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        yield part({}, more_of=chunk, unfinished=True)
        yield part({last: [b"1"]}, more_of=chunk)

    reduction = UdfReduction(program(sidecar))
    results, failures = await asyncio.to_thread(lambda: results_of(reduction.run(parts())))
    assert failures == {}
    assert list(results) == [*small, large, last]
    assert results[large] == [counted(large, chunk * 4, (1000, 2999))]
    assert reduction.breaks >= 1


async def test_a_function_that_ends_its_process_once(sidecar: LocalFunction, tmp_path: Path) -> None:
    exits = b"exit:" + os.fsencode(tmp_path / "once")
    groups = {group(str(key)): [exits if key == 50 else b"1", b"2"] for key in range(100)}
    results, failures = await reduced(sidecar, [part(groups)])
    assert failures == {}
    assert list(results) == list(groups)
    assert results[group("50")] == [counted(group("50"), [exits, b"2"], (1100, 1101))]


async def test_a_group_that_always_ends_the_process_fails_alone(sidecar: LocalFunction) -> None:
    groups = {group(str(key)): [b"die" if key == 5 else b"1"] for key in range(10)}
    results, failures = await reduced(sidecar, [part(groups)])
    assert list(failures) == [group("5")]
    assert "ended 3 times while it processed this group" in failures[group("5")]
    assert list(results) == [one for one in groups if one != group("5")]


async def test_a_large_group_that_always_ends_the_process_fails_alone(sidecar: LocalFunction) -> None:
    chunk = [b"x" * 1000] * 2000
    bad, good = group("bad"), group("good")
    parts = [part({bad: [b"die", *chunk]}, unfinished=True), part({}, more_of=chunk, unfinished=True)]
    results, failures = await reduced(sidecar, [*parts, part({good: [b"1"]}, more_of=chunk)])
    assert list(failures) == [bad]
    assert results[good] == [counted(good, [b"1"], (3000, 3000))]


async def test_a_group_too_large_to_be_sent_again(sidecar: LocalFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_client, "KEPT_BYTES_MAX", 4 * MIB)
    chunk = [b"x" * 1000] * 2000

    def parts() -> Iterator[Part]:
        yield part({group("large"): chunk}, unfinished=True)
        for _ in range(3):
            yield part({}, more_of=chunk, unfinished=True)
        pid = sidecar.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        yield part({}, more_of=chunk)

    with pytest.raises(
        FunctionLostError, match=r"in the middle of \[1970-01-01T00:01:00Z, .* large, which is too large"
    ):
        await reduced(sidecar, parts())


async def test_a_slow_function_holds_its_caller_up(
    sidecar: LocalFunction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce_client, "KEPT_BYTES_MAX", 16 * MIB)
    go_on, begun = tmp_path / "go on", tmp_path / "go on.begun"
    chunk = [b"x" * 1000] * 1000
    taken = 0

    def parts() -> Iterator[Part]:
        nonlocal taken
        yield part({group("slow"): [b"wait:" + os.fsencode(go_on)]})
        for number in range(100):
            taken += 1
            yield part({group(str(number)): chunk})

    reduction = UdfReduction(program(sidecar))
    running = asyncio.create_task(asyncio.to_thread(lambda: results_of(reduction.run(parts()))))
    async with asyncio.timeout(30):
        # Until nothing moves any more. Counters and another process's file: no event reports them.
        stood = -1
        while stood != taken or taken < 2 or not begun.exists():
            stood = taken
            await asyncio.sleep(0.3)
    # All boxes are full, and no more is taken until the function has answered.
    pid = sidecar.statistics().pid
    assert pid is not None
    memory = psutil.Process(pid).memory_info().rss
    assert stood < 20
    assert not running.done()
    go_on.touch()
    results, failures = await running
    assert failures == {}
    assert len(results) == 101
    assert taken == 100
    assert memory < 300 * MIB


async def test_what_the_caller_raises_ends_the_stream(sidecar: LocalFunction) -> None:
    def parts() -> Iterator[Part]:
        yield part({group("a"): [b"1"]}, unfinished=True)
        raise OSError("the segment is gone")

    with pytest.raises(OSError, match="the segment is gone"):
        await reduced(sidecar, parts())
    # The next stream finds the function well.
    results, _ = await reduced(sidecar, [part({group("b"): [b"1"]})])
    assert list(results) == [group("b")]


async def test_two_streams_at_once(sidecar: LocalFunction, tmp_path: Path) -> None:
    chunk = [b"x" * 100] * 1000

    def parts(number: int) -> Iterator[Part]:
        for key in range(20):
            yield part({group(str(number), str(key)): chunk}, unfinished=True)
            yield part({}, more_of=chunk)

    both = await together(reduced(sidecar, parts(1)), reduced(sidecar, parts(2)))
    for number, (results, failures) in enumerate(both, 1):
        assert failures == {}
        assert list(results) == [group(str(number), str(key)) for key in range(20)]


async def test_a_function_that_drains_answers_what_is_whole(sidecar: LocalFunction) -> None:
    chunk = [b"x" * 1000] * 2000
    large = group("large")

    def parts() -> Iterator[Part]:
        yield part({group("small"): [b"1"]})
        yield part({large: chunk}, unfinished=True)
        pid = sidecar.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        yield part({}, more_of=chunk)

    results, failures = await reduced(sidecar, parts())
    assert failures == {}
    assert results[large] == [counted(large, chunk * 2, (1000, 2999))]
    # A function that has read everything before the signal reaches it answers first, and ends then.
    async with asyncio.timeout(RESTART_S):
        while not sidecar.statistics().restarts:  # noqa: ASYNC110  # the supervisor has no event for it
            await asyncio.sleep(0.01)
    assert sidecar.statistics().restarts == 1


async def test_a_map_is_no_reduce(open_function: Open) -> None:
    async with open_function(python_command(f"{HERE / 'conformance.py'}:obey")) as sidecar:
        with raises(codes.FUNCTION_KIND, match=r"the function serves map, but this vertex needs a reduce"):
            sidecar.check_kind(FunctionKind.REDUCE, NAME)
        with raises(codes.FUNCTION_KIND, match=r"obey serves map, but vertex clean of flights needs reduce"):
            await reduced(sidecar, [part({group("a"): [b"1"]})])


async def test_lines_of_a_function_name_window_and_key(open_function: Open, lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(
        "import sys\n"
        "def process(keys, records, window):\n"
        "    print('seen', len(list(records)), end='')\n"
        "    print('so', file=sys.stderr)\n"
        "    return b''\n"
    )
    async with open_function(python_command(f"{tmp_path / 'says.py'}:process")) as sidecar:
        await reduced(sidecar, [part({group("AA", "JFK"): [b"1", b"2"]})])
    label = "[1970-01-01T00:01:00Z, 1970-01-01T00:02:00Z) AA/JFK: "
    assert ("stdout", f"{label}seen 2") in lines
    assert ("stderr", f"{label}so") in lines


def test_nothing_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("millstream.udf.native.reduce_stream.CONNECT_TIMEOUT_S", 0.2)
    nowhere = engine_pb2.UdfProgram(address=f"unix:{tmp_path / 'none'}", pipeline="p", vertex="v")
    with raises(codes.FUNCTION_UNREACHABLE, match=r"p/v: the function at unix:.* has not answered for 0.2 s"):
        list(reduce_over_grpc(nowhere, [part({group("a"): [b"1"]})]))
