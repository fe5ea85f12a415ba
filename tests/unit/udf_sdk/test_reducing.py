"""Reduce functions in a process that is not ours, such as a Spark worker: parts in, answers out."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import millstream_udf as udf
from millstream_udf import output_prefix
from millstream_udf.failures import Gone
from millstream_udf.groups import Group, Part
from millstream_udf.loading import LoadError
from millstream_udf.misfits import MISFIT_CODE
from millstream_udf.reduce_arrow import ArrowRows
from millstream_udf.reducing import ANSWER_BYTES, Answer, load
from tests.support.children import together


def group(*keys: str) -> Group:
    return Group(udf.Window(0, 60_000_000), keys)


def batch_of(values: list[bytes]) -> pa.RecordBatch:
    times = pa.array(range(len(values)), pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"value": pa.array(values, pa.binary()), "event_time": times, "window": [0] * len(values)})


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A directory with a module that the test writes; what loading it does to the interpreter is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield str(tmp_path)
    sys.modules.pop("users_reduce", None)


def write(directory: str, text: str) -> None:
    (Path(directory) / "users_reduce.py").write_text(text)


def answers(directory: str, parts: Iterable[Part], name: str = "process") -> list[Answer]:
    return list(pickle.loads(pickle.dumps(load(f"users_reduce:{name}", directory)))(parts))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"no json", "it is not JSON: Expecting value at byte 0: 'no json'"),
        (b"[1]", r"it is \[1\], where an object is expected"),
        (b"", "it is not JSON: the value is empty"),
        (b'{"n": 1}{"n": 2}', "it is not JSON: Extra data at byte 8"),
        (b'{"n": "text"}', 'the value does not fit the schema: field `n` is "text", where int64 is expected'),
    ],
)
def test_a_value_that_is_not_of_the_schema_fails_its_own_group(value: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "summing.py").write_text(
        "import pyarrow as pa\n"
        "import pyarrow.compute as pc\n"
        "import millstream_udf as udf\n"
        "@udf.reduce(arrow=True, schema=pa.schema([('n', pa.int64())]))\n"
        "def process(table):\n"
        "    return str(pc.sum(table['n']).as_py())\n"
    )
    groups = [group("a"), group("b"), group("c")]
    batch = batch_of([b'{"n": 1}', b'{"n": 2}', value, b'{"n": 4}'])
    (answer,) = load("summing.py:process", str(tmp_path))([Part(groups, [2, 1, 1], ArrowRows(batch))])
    assert answer.results == [b"3", b"4"]
    (failure,) = answer.failures
    assert (failure.index, failure.code) == (1, MISFIT_CODE)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(failure.error)


def test_groups_in_parts(functions: str) -> None:
    write(functions, "def process(keys, values, window):\n    return f'{keys[0]}: {b\"\".join(values).decode()}'\n")
    parts = [
        Part([group("a"), group("b")], [1, 2], ArrowRows(batch_of([b"1", b"2", b"3"])), unfinished=True),
        Part([], [1], ArrowRows(batch_of([b"4"])), unfinished=True),
        Part([], [0], ArrowRows(batch_of([])), unfinished=True),
        Part([group("c"), group("d")], [1, 1, 0], ArrowRows(batch_of([b"5", b"6"])), unfinished=True),
        Part([group("e")], [0, 1], ArrowRows(batch_of([b"7"]))),
    ]
    got = answers(functions, parts)
    assert [result for answer in got for result in answer.results] == [b"a: 1", b"b: 2345", b"c: 6", b"d: ", b"e: 7"]
    assert [one.keys[0] for answer in got for one in answer.groups] == ["a", "b", "c", "d", "e"]
    assert not any(answer.unfinished for answer in got)


def test_a_slice_of_a_batch(functions: str) -> None:
    write(
        functions,
        "def process(keys, records, window):\n"
        "    return [f'{r.value.decode()} {r.event_time_us} {r.keys} {dict(r.headers)}' for r in records]\n",
    )
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"bb", b"ccc", b"d"], pa.large_binary()),
            "event_time": pa.array([1, 2, 3, 4], pa.timestamp("us", tz="UTC")),
            "keys": pa.array([[], ["k"], ["l", "m"], None], pa.list_(pa.string())),
            "headers": pa.array([[], [("h", b"1")], [], None], pa.map_(pa.string(), pa.binary())),
        }
    ).slice(1, 2)
    (answer,) = answers(functions, [Part([group()], [2], ArrowRows(batch))])
    assert answer.results == [b"bb 2 ('k',) {'h': b'1'}", b"ccc 3 ('l', 'm') {}"]


def test_results_leave_while_they_are_made(functions: str) -> None:
    write(
        functions,
        "def process(keys, records, window):\n"
        "    for number in range(5):\n"
        "        if keys == ('bad',) and number == 3:\n"
        "            raise ValueError('half-way')\n"
        f"        yield b'x' * {ANSWER_BYTES // 2}\n",
    )
    parts = [Part([group("good"), group("bad")], [1, 1], ArrowRows(batch_of([b"1", b"2"])))]
    got = answers(functions, parts)
    assert [answer.unfinished for answer in got] == [True, True, True, True, False]
    assert [answer.counts for answer in got] == [[2], [2], [1, 1], [2], [0]]
    (failure,) = got[-1].failures
    assert got[-1].groups[failure.index] == group("bad")
    assert failure.error == "ValueError: half-way"


def test_parts_that_end_in_the_middle(functions: str) -> None:
    write(
        functions,
        "def process(keys, records, window):\n    try:\n        list(records)\n    except Exception:\n        pass\n",
    )
    with pytest.raises(Gone):
        answers(functions, [Part([group()], [1], ArrowRows(batch_of([b"1"])), unfinished=True)])


def test_async_groups_wait_together(functions: str) -> None:
    write(
        functions,
        "import asyncio\n"
        "import millstream_udf as udf\n"
        "waiting = set()\n"
        "everybody = asyncio.Event()\n"
        "@udf.reduce(concurrency=3)\n"
        "async def process(keys, records):\n"
        "    waiting.add(keys)\n"
        "    if len(waiting) == 3:\n"
        "        everybody.set()\n"
        "    await asyncio.wait_for(everybody.wait(), 10)\n"
        "    if keys == ('1',):\n"
        "        raise ValueError('one')\n"
        "    return keys[0]\n",
    )
    groups = [group(str(key)) for key in range(5)]
    (answer,) = answers(functions, [Part(groups, [1] * 5, ArrowRows(batch_of([b""] * 5)))])
    assert answer.results == [b"0", b"2", b"3", b"4"]
    assert answer.counts == [1, 0, 1, 1, 1]
    assert [failure.index for failure in answer.failures] == [1]


def test_a_class_is_set_up_once_a_process(functions: str) -> None:
    write(
        functions,
        "import millstream_udf as udf\n"
        "@udf.reduce\n"
        "class Process:\n"
        "    async def setup(self, context):\n"
        "        self.calls = 0\n"
        "    def process(self, records):\n"
        "        self.calls += 1\n"
        "        return str(self.calls)\n",
    )
    part = Part([group()], [1], ArrowRows(batch_of([b"1"])))
    first, second = answers(functions, [part], "Process"), answers(functions, [part], "Process")
    assert [first[0].results, second[0].results] == [[b"1"], [b"2"]]


def test_lines_name_window_and_key(
    functions: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `output_prefix.install` stays for the life of a process; here for the life of the test.
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    write(
        functions,
        "import sys\n"
        "def process(keys, records):\n"
        "    for record in records:\n"
        "        print('got', record.value)\n"
        "    print('end', end='', file=sys.stderr)\n",
    )
    answers(
        functions,
        [Part([group("AA", "JFK"), group("B")], [2, 1], ArrowRows(batch_of([b"1", b"2", b"3"])))],
    )
    sys.stdout.write("unlabelled\n")
    out, error = capsys.readouterr()
    window = "users_reduce:process [1970-01-01T00:00:00Z, 1970-01-01T00:01:00Z)"
    assert out.splitlines() == [
        f"{window} AA/JFK: got b'1'",
        f"{window} AA/JFK: got b'2'",
        f"{window} B: got b'3'",
        "unlabelled",
    ]
    assert error.splitlines() == [f"{window} AA/JFK: end", f"{window} B: end"]


def test_labels_of_tasks_do_not_mix(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    output_prefix.install()
    output_prefix.install()

    async def say(name: str) -> None:
        with output_prefix.labelled(name):
            sys.stdout.write(f"{name} begins ")
            await asyncio.sleep(0)
            sys.stdout.write("and ends\n")

    async def both() -> None:
        await together(say("a"), say("b"))

    asyncio.run(both())
    assert capsys.readouterr().out.splitlines() == ["a: a begins and ends", "b: b begins and ends"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("users_reduce:shout", "shout is not a reduce function: decorate it"),
        ("users_reduce:missing", "users_reduce has no missing"),
        ("users_other:process", "there is no module users_other"),
        ("users_other.py:process", "there is no file users_other.py"),
        ("users_reduce", "does not name a function"),
    ],
)
def test_what_cannot_be_loaded(functions: str, target: str, message: str) -> None:
    write(functions, "def shout(value):\n    return value.upper()\n")
    with pytest.raises(LoadError, match=message):
        load(target, functions)


def test_a_module_that_fails_raises_what_it_raises(functions: str) -> None:
    write(functions, "raise OSError('no licence')\n")
    with pytest.raises(OSError, match="no licence"):
        load("users_reduce:process", functions)


@pytest.mark.process
def test_a_worker_needs_neither_grpc_nor_arrow_to_find_it() -> None:
    code = (
        "import sys, millstream_udf.reducing\n"
        "assert 'grpc' not in sys.modules\n"
        "assert 'pyarrow' not in sys.modules\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
