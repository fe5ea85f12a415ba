"""A source, a sink and a kind of vertex of a package outside of Millstream, found by its entry points alone, in runs as
users start them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sqlite3
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from string import Template

import pytest

from tests.mesh.running import command, start
from tests.recovery.kills import FUNCTION, kill, killed_in_turn
from tests.support.sizes import sized

TOYS = Path(__file__).parent / "toys"
PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
NUMBERS = 3000
ENDLESS = 1_000_000
"""A countdown from here ends after half an hour."""
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {countdown: {start: $numbers, perSecond: 1000}}
  - name: out
    sink: {sqlite: {path: out.db}}
  edges:
  - {from: in, to: out}
"""

SQUARES = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {countdown: {start: $numbers, perSecond: 500}}
  - name: square
    udf: {command: [$python, square.py], protocol: lines}
    placement: {process: own}
  - name: out
    sink: {sqlite: {path: out.db}}
  edges:
  - {from: in, to: square}
  - {from: square, to: out}
"""


ONCE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {countdown: {start: $numbers, perSecond: 500}}
  - name: half
    udf: {python: "steps.py:half"}
  - name: once
    dedup: {ttl: 1h}
    placement: {process: own}
  - name: out
    sink: {sqlite: {path: out.db}}
  edges:
  - {from: in, to: half}
  - {from: half, to: once}
  - {from: once, to: out}
"""


@pytest.fixture
def pipeline(installed: None, tmp_path: Path) -> Path:
    """The directory of a pipeline of toys."""
    (tmp_path / "pipeline.yaml").write_text(Template(PIPELINE).substitute(numbers=NUMBERS))
    return tmp_path


@pytest.fixture
def squares(pipeline: Path) -> Path:
    """The directory of a pipeline with a function that speaks the protocol of the toys."""
    shutil.copy(TOYS / "square.py", pipeline)
    text = Template(SQUARES).substitute(numbers=NUMBERS, python=sys.executable)
    (pipeline / "pipeline.yaml").write_text(text)
    return pipeline


def endless(pipeline: str, per_second: int) -> str:
    text = Template(pipeline).substitute(numbers=ENDLESS, python=sys.executable)
    return re.sub("perSecond: [0-9]+", f"perSecond: {per_second}", text)


def rows(directory: Path) -> list[int]:
    with closing(sqlite3.connect(directory / "out.db")) as database:
        return [int(value) for (value,) in database.execute("SELECT value FROM records ORDER BY rowid")]


def test_the_page_shows_the_code_that_runs_here() -> None:
    shown = r"^`tests/extensions/toys/([^`]+)`:\n\n```\w+\n(.*?)\n```$"
    blocks = re.findall(shown, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in blocks} == {
        "conformance.py",
        "pyproject.toml",
        "millstream_toys/countdown/lane.py",
        "millstream_toys/dedup/kind.py",
        "millstream_toys/dedup/stage.py",
        "millstream_toys/lines/connection.py",
        "millstream_toys/lines/protocol.py",
        "millstream_toys/sqlite/connector.py",
        "millstream_toys/sqlite/lane.py",
    }
    assert [name for name, text in blocks if text not in (TOYS / name).read_text()] == []
    ends = re.search(r"```yaml\n(- name: in\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert ends is not None
    assert textwrap.indent(ends[1], "  ") in Template(PIPELINE).substitute(numbers=NUMBERS)


@pytest.mark.sweep
async def test_validate_knows_the_connectors_of_an_installed_package(pipeline: Path) -> None:
    ended = await command(pipeline, "validate", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    assert "sink out: exactly once: each transaction holds rows and the position behind them" in ended.out


@pytest.mark.sweep
async def test_their_settings_and_what_they_miss_are_checked_as_any_other(pipeline: Path) -> None:
    path = pipeline / "pipeline.yaml"
    path.write_text(path.read_text().replace("perSecond", "perSeconds").replace("out.db", "nowhere/out.db"))
    ended = await command(pipeline, "validate", "-o", "json", "pipeline.yaml")
    problems = {(problem["path"], problem["what"], problem["line"]) for problem in json.loads(ended.out)["problems"]}
    assert ended.exit_code == 2
    nowhere = f"there is no directory {pipeline / 'nowhere'}"
    assert problems == {
        ("spec.vertices[0].source.countdown.perSeconds", "unknown field `perSeconds`", 7),
        ("spec.vertices[1].sink.sqlite.path", nowhere, 9),
    }
    assert "`perSecond`" in ended.out


@pytest.mark.sweep
async def test_without_the_package_its_names_are_unknown(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    ended = await command(pipeline, "validate", "-o", "json", "pipeline.yaml")
    assert ended.exit_code == 2
    what = {problem["what"] for problem in json.loads(ended.out)["problems"]}
    assert {"unknown field `countdown`", "unknown field `sqlite`"} <= what


async def test_they_are_listed_with_their_package_and_asked_about_their_targets(pipeline: Path) -> None:
    listed = await command(pipeline, "connectors", "sqlite", "-o", "json")
    (sink,) = json.loads(listed.out)["connectors"]
    assert (sink["role"], sink["package"].split()[0]) == ("sink", "millstream-toys")
    assert [option["name"] for option in sink["options"]] == ["path"]
    (pipeline / "out.db").write_text("something else")
    ended = await command(pipeline, "validate", "--online", "pipeline.yaml")
    assert ended.exit_code == 2
    assert "out.db is not a database of SQLite" in ended.err
    assert "MS-2512" in ended.err


@pytest.mark.guarantee("I1")
async def test_each_record_of_theirs_counts_once_though_both_ends_are_killed(pipeline: Path) -> None:
    made = await killed_in_turn(pipeline, endless(PIPELINE, 250), ("in-0", "out-0"))
    assert rows(pipeline) == list(range(ENDLESS, ENDLESS - made, -1))


@pytest.fixture
def once(pipeline: Path) -> Path:
    """The directory of a pipeline in which each value comes twice, and goes through `dedup`."""
    (pipeline / "pipeline.yaml").write_text(Template(ONCE).substitute(numbers=NUMBERS))
    (pipeline / "steps.py").write_text("def half(value):\n    return str(int(value) // 2)\n")
    return pipeline


async def test_a_kind_of_theirs_is_checked_and_drawn_as_any_other(once: Path) -> None:
    valid = await command(once, "validate", "pipeline.yaml")
    assert valid.exit_code == 0, valid.err
    assert "dedup once: each value once in 1h: what was seen is committed with what was let through" in valid.out
    drawn = await command(once, "graph", "pipeline.yaml")
    assert "once  dedup (1h)\n└──► out" in drawn.out
    path = once / "pipeline.yaml"
    path.write_text(
        path.read_text().replace("dedup: {ttl: 1h}", "dedup: {ttls: 1h}").replace("  - {from: once, to: out}", "")
    )
    wrong = await command(once, "validate", "-o", "json", "pipeline.yaml")
    problems = {(problem["path"], problem["what"]) for problem in json.loads(wrong.out)["problems"]}
    assert {
        ("spec.vertices[2].dedup.ttls", "unknown field `ttls`"),
        ("spec.vertices[2]", "`once` has no output"),
    } <= problems
    assert "`ttl`" in wrong.out


@pytest.mark.sweep
async def test_a_kind_that_is_not_installed_is_unknown(once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")
    ended = await command(once, "validate", "-o", "json", "pipeline.yaml")
    assert ended.exit_code == 2
    assert "unknown field `dedup`" in {problem["what"] for problem in json.loads(ended.out)["problems"]}


@pytest.mark.guarantee("I1")
async def test_a_kind_of_theirs_commits_once_what_it_has_seen_though_it_is_killed(once: Path) -> None:
    made = await killed_in_turn(once, endless(ONCE, 100), ("once-0", "once-0")[: sized(1, 2)])
    lowest = ENDLESS - made + 1
    assert rows(once) == list(range(ENDLESS // 2, lowest // 2 - 1, -1))
    shown = await command(once, "status")
    (line,) = (line for line in shown.out.splitlines() if line.startswith("once ") and " dedup " in line)
    assert f"{made:,}" in line


FOLLOWED = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {file: {paths: [in.txt], format: lines, follow: true}}
  - name: once
    dedup: {ttl: 5s}
    placement: {process: own}
  - name: out
    sink: {sqlite: {path: out.db}}
  edges:
  - {from: in, to: once}
  - {from: once, to: out}
"""
TTL_S = 5.0


@pytest.mark.sweep
async def test_a_stage_of_theirs_forgets_by_a_timer_that_survives_a_kill(pipeline: Path) -> None:
    (pipeline / "pipeline.yaml").write_text(FOLLOWED)
    given = pipeline / "in.txt"
    given.write_text("1\n")
    begun_s = time.monotonic()
    async with start(pipeline, "run", "pipeline.yaml", "--quiet") as run:
        await run.until_more("out")
        await kill(run, "once-0", None)
        counts = itertools.count(1)

        def is_through_again() -> bool:
            with given.open("a") as file:
                file.write(f"1\n{'2' * next(counts)}\n")
            return rows(pipeline).count(1) == 2

        await run.until(is_through_again)
        # A stage that had lost its state would have let it through as soon as it was started again.
        assert time.monotonic() >= begun_s + TTL_S
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err


@pytest.mark.guarantee("I1")
async def test_each_record_counts_once_through_a_function_of_another_protocol_that_is_killed(squares: Path) -> None:
    made = await killed_in_turn(squares, endless(SQUARES, 500), [FUNCTION])
    assert rows(squares) == [number**2 for number in range(ENDLESS, ENDLESS - made, -1)]


@pytest.mark.sweep
@pytest.mark.guarantee("I2")
async def test_records_that_fail_in_another_protocol_are_retried_or_become_dead_letters(squares: Path) -> None:
    shutil.copy(TOYS / "unlucky.py", squares)
    path = squares / "pipeline.yaml"
    text = path.read_text().replace("square.py", "unlucky.py").replace(f"start: {NUMBERS}", "start: 30")
    policy = "protocol: lines, retryStrategy: {backoff: {interval: 1ms, steps: 2}}"
    text = text.replace("protocol: lines", policy)
    text = text.replace("  edges:\n", "  - name: dead\n    sink: {spool: {path: dead}}\n  edges:\n")
    path.write_text(text + "  - {from: square, to: dead, kind: deadLetter}\n")
    ended = await command(squares, "run", "pipeline.yaml", "--quiet", "-o", "json")
    assert ended.exit_code == 0, ended.err
    assert json.loads(ended.out.splitlines()[-1])["account"]["balanced"]
    # 7 was right at the second attempt.
    assert rows(squares) == [number**2 for number in range(30, 0, -1) if number not in (13, 21)]
    envelopes = [json.loads(letter.read_bytes()) for letter in (squares / "dead").glob("*/[0-9]*")]
    assert {letter["value"]: letter["reason"] for letter in envelopes} == {
        "13": "13 is unlucky",
        "21": "its process exited with code 3, 3 times in a row, when it had this record alone",
    }


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        *(
            pytest.param(*one, marks=pytest.mark.sweep)
            for one in (
                ("command: [PYTHON, square.py], protocol: telegraph", "there is no UDF protocol `telegraph`"),
                ('python: "square.py:answer", protocol: lines', "`protocol` has no effect"),
                ("address: host:1, tls: {}, protocol: lines", "the protocol `lines` does not support encryption"),
            )
        ),
        (
            "command: [PYTHON, square.py], protocol: lines, groupBy: {window: {fixed: {length: 1s}}}",
            "the protocol `lines` has no reduce functions",
        ),
    ],
)
async def test_a_protocol_that_a_program_cannot_speak(squares: Path, written: str, problem: str) -> None:
    path = squares / "pipeline.yaml"
    program = f"command: [{sys.executable}, square.py], protocol: lines"
    path.write_text(path.read_text().replace(program, written.replace("PYTHON", sys.executable)))
    ended = await command(squares, "validate", "-o", "json", "pipeline.yaml")
    assert ended.exit_code == 2
    assert problem in " ".join(str(found["what"]) for found in json.loads(ended.out)["problems"])
