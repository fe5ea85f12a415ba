"""`millstream deadletters`: what was given up is listed, and put back once, whatever is done how often."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from millstream.durable import CRASH_AT
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Ended, called, command, start
from tests.mesh.test_init import rows
from tests.support.sizes import sized

PICKY = """\
import json, pathlib

FIXED = pathlib.Path(__file__).with_name("fixed")


def picky(value: bytes) -> bytes:
    if json.loads(value)["number"] % 10 == 3 and not FIXED.exists():
        raise ValueError("three")
    return value
"""


async def done(directory: Path, *arguments: str) -> Ended:
    ended = await called(directory, *arguments)
    assert ended.exit_code == 0, ended.err
    return ended


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_what_the_template_refuses_comes_back_when_it_is_put_right(tmp_path: Path) -> None:
    await done(tmp_path, "init", "orders")
    directory = tmp_path / "orders"
    await done(directory, "run", "pipeline.yaml")
    listed = await done(directory, "deadletters", "list")
    assert "1  price             an order of 0 pieces" in listed.out
    assert "1  read              data/orders.jsonl:4: 'not json' is not a JSON value" in listed.out
    assert listed.out.endswith("2 dead letters\n")
    (one,) = (await done(directory, "deadletters", "list", "-o", "json", "--vertex", "price")).out.splitlines()
    assert (json.loads(one)["lane"], json.loads(one)["keys"]) == ("read-price.0", ["edsger"])

    function = directory / "functions.py"
    function.write_text(function.read_text().replace('order["pieces"] < 1', 'order["pieces"] < 0'))
    replayed = await called(directory, "deadletters", "replay")
    assert replayed.exit_code == 2, "the line that is no order cannot go back"
    assert "1 replayed, 0 skipped" in replayed.out
    assert "1 not replayed: read is a source and reads no buffer" in replayed.out
    again = await done(directory, "deadletters", "replay", "--vertex", "price")
    assert "0 replayed, 1 skipped because they were replayed before" in again.out
    assert "2 dead letters, 1 of them replayed" in (await done(directory, "deadletters", "list")).out
    summary = await done(directory, "run", "pipeline.yaml")
    assert "BALANCED" in summary.out + summary.err
    assert [row["item"] for row in rows(directory, "all")].count("shelf") == 1
    assert len(rows(directory, "all")) == 6
    assert [len(rows(directory, name)) for name in ("refused", "unreadable")] == [1, 1]

    await done(directory, "deadletters", "replay", "--reason", "0 pieces")
    await done(directory, "run", "pipeline.yaml")
    assert len(rows(directory, "all")) == 6


@pytest.mark.guarantee("I1")
@pytest.mark.sweep
async def test_a_replay_that_dies_anywhere_and_is_made_again_puts_back_each_record_once(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picky.py").write_text(PICKY, encoding="utf-8")
    policy = "retryStrategy: {backoff: {interval: 1ms, steps: 1}}"
    files.write(
        files.generator(30)
        + f"- name: map\n  udf: {{python: 'picky.py:picky', {policy}}}\n  partitions: 2\n"
        + files.file_sink("out")
        + files.file_sink("dead"),
        ["in -> map", "map -> out", "{from: map, to: dead, kind: deadLetter}"],
    )
    await done(tmp_path, "run", "pipeline.yaml")
    assert sorted(files.numbers("out")) == [n for n in range(30) if n % 10 != 3]
    (tmp_path / "fixed").touch()
    kept = tmp_path / "kept"
    for name in (".millstream", "out", "dead"):
        shutil.copytree(tmp_path / name, kept / name)
    # Some lanes are open again and some not; nothing is put back; it is, and no answer was sent.
    for point in ("ledger.commit:after@map", "ledger.commit:before@in", "ledger.commit:after@in"):
        for name in (".millstream", "out", "dead"):
            shutil.rmtree(tmp_path / name)
            shutil.copytree(kept / name, tmp_path / name)
        with monkeypatch.context() as patched:
            patched.setenv(CRASH_AT, point)
            killed = await command(tmp_path, "deadletters", "replay")
            assert killed.exit_code < 0, f"{point} was not reached: {killed.out}"
        await done(tmp_path, "deadletters", "replay")
        ended = await done(tmp_path, "run", "pipeline.yaml")
        assert "BALANCED" in ended.out + ended.err
        assert sorted(files.numbers("out")) == list(range(30)), point


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
async def test_a_replay_reaches_only_the_vertex_that_gave_the_records_up(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `map` and `all` read one stored copy of what `in` gives.
    (tmp_path / "picky.py").write_text(PICKY, encoding="utf-8")
    policy = "retryStrategy: {backoff: {interval: 1ms, steps: 1}}"
    files.write(
        files.generator(30)
        + f"- name: map\n  udf: {{python: 'picky.py:picky', {policy}}}\n"
        + files.file_sink("all")
        + files.file_sink("out")
        + files.file_sink("dead"),
        ["in -> map", "in -> all", "map -> out", "{from: map, to: dead, kind: deadLetter}"],
    )
    await done(tmp_path, "run", "pipeline.yaml")
    (tmp_path / "fixed").touch()
    for point in ("ledger.leave:after@in", "ledger.commit:after@map", "ledger.leave:before@in")[: sized(1, 3)]:
        with monkeypatch.context() as patched:
            patched.setenv(CRASH_AT, point)
            killed = await command(tmp_path, "deadletters", "replay")
            assert killed.exit_code < 0, f"{point} was not reached: {killed.out}"
    assert "3 replayed, 0 skipped" in (await done(tmp_path, "deadletters", "replay")).out
    for _ in range(2):
        ended = await done(tmp_path, "run", "pipeline.yaml")
        assert "BALANCED" in ended.out + ended.err
        assert sorted(files.numbers("out")) == list(range(30))
        assert sorted(files.numbers("all")) == list(range(30))
    assert "0 replayed, 3 skipped" in (await done(tmp_path, "deadletters", "replay")).out


@pytest.mark.guarantee("I1")
async def test_dead_letters_that_wait_for_their_sink_go_back_once(files: PipelineFiles, tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(PICKY, encoding="utf-8")
    policy = "retryStrategy: {backoff: {interval: 1ms, steps: 1}}"
    files.write(
        files.generator(30)
        + f"- name: map\n  udf: {{python: 'picky.py:picky', {policy}}}\n"
        + files.file_sink("out")
        # Nothing answers there, so what it should get stays in its buffer.
        + "- name: stuck\n  sink: {http: {url: 'http://127.0.0.1:9/'}}\n",
        ["in -> map", "map -> out", "{from: map, to: stuck, kind: deadLetter}"],
    )
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") == 27)
    listed = (await done(tmp_path, "deadletters", "list", "-o", "json", "pipeline.yaml", "--stored")).out
    letters = [json.loads(line) for line in listed.splitlines()]
    assert [json.loads(letter["value"])["number"] for letter in letters] == [3, 13, 23]
    assert letters[0]["place"].startswith("map-stuck-dead-letter.0:")
    (tmp_path / "fixed").touch()
    assert "3 replayed, 0 skipped" in (await done(tmp_path, "deadletters", "replay", "--stored")).out
    (tmp_path / "same.jsonl").write_text(listed, encoding="utf-8")
    assert "0 replayed, 3 skipped" in (await done(tmp_path, "deadletters", "replay", "same.jsonl")).out


@pytest.mark.sweep
async def test_a_replay_waits_for_the_end_of_the_run(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.generator(None, rpu=50) + files.function("picky") + files.file_sink("out") + files.file_sink("dead"),
        ["in -> map", "map -> out", "{from: map, to: dead, kind: deadLetter}"],
    )
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: len(files.rows("dead")) > 0)
        listed = await done(tmp_path, "deadletters", "list")
        assert "ValueError: number 1 is bad" in listed.out
        refused = await called(tmp_path, "deadletters", "replay")
        assert refused.exit_code == 2
        assert f"is running (process {run.process.pid})" in refused.err
        run.interrupt()
        assert (await run.ended()).exit_code == 0
    some = await done(tmp_path, "deadletters", "replay", "--reason", "number 1 ")
    assert "1 replayed, 0 skipped" in some.out
    assert "reopened" not in some.out, "a drained pipeline goes on anyway"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["list", "nowhere"], "nowhere does not exist", marks=pytest.mark.sweep),
        pytest.param(["list", "text.jsonl"], "text.jsonl:1: not JSON", marks=pytest.mark.sweep),
        (["list", "rows.jsonl"], "rows.jsonl:1: not an envelope"),
        (["list", "rows.csv"], "rows.csv:2: not an envelope: a JSON object with `eventTime`"),
        pytest.param(["list", "keys.csv"], "keys.csv:2: Expecting value", marks=pytest.mark.sweep),
        (["list", "text.parquet"], "text.parquet:0: not a Parquet file"),
        pytest.param(["list", "rows.jsonl", "--stored"], "but rows.jsonl is a file", marks=pytest.mark.sweep),
    ],
)
async def test_what_is_no_dead_letter_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "text.jsonl").write_text("not json\n")
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "rows.csv").write_text("n,value\n1,a\n")
    (tmp_path / "keys.csv").write_text("eventTime,value,keys\n5,a,b\n")
    (tmp_path / "text.parquet").write_text("not json\n")
    ended = await called(tmp_path, "deadletters", *arguments)
    assert ended.exit_code == 2
    assert said in ended.err
