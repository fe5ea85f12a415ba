"""Any process of a running pipeline is killed at random; nothing is lost, repeated or told differently to two sinks.

Kills over 20,000 records between a generator, a function with random answers and two file sinks, over windows in Spark,
over a function that remembers, and with encryption and a function in a sandbox. What came out is judged by the oracle,
which is then shown what it would have to find.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream.sandbox import refusal
from tests.small_disk import give_up
from tests.support.sizes import sized


def chaos(pipeline: str, kills: int, records: int, directory: Path, *more: str, seed: int = 42) -> dict[str, Any]:
    command = [sys.executable, "-m", "millstream_runner", "chaos", pipeline, "--kills", str(kills), "--seed", str(seed)]
    command += ["--records", str(records), "--dir", str(directory), "-o", "json", *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert told["sound"]
    assert told["violations"] == []
    assert told["counts"] == {"lost": 0, "repeated": 0, "disagreeing": 0}
    assert sum(told["faults"].values()) == kills
    return told


def judged(directory: Path, expect: str) -> tuple[int, list[str]]:
    """What the oracle says of an experiment that is over: exit code, and what is violated."""
    command = [sys.executable, "-m", "millstream_runner.chaos.oracle", "--expect", expect]
    command += ["--data-dir", str(directory / "state"), "--sinks", str(directory / "sinks")]
    command += ["--guarantees", str(directory / "guarantees.json")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    checks = json.loads(ended.stdout)["checks"]
    return ended.returncode, [check["what"] for check in checks if check["result"] == "violated"]


@pytest.mark.timeout(600)
@pytest.mark.guarantee("I1", "I2", "I6", "I8", "I9")
def test_both_sinks_hold_every_record_once_and_agree(tmp_path: Path) -> None:
    told = chaos("mesh", sized(6, 23), sized(8_000, 20_000), tmp_path / "one")
    assert set(told["faults"]) == {"kill runner", "kill broker", "kill worker", "kill sidecar"}
    assert told["resume_s"]["without_spark"]["measured"]

    # The oracle would have seen it: one line too few, or a file of an earlier moment put back under a new name.
    assert judged(tmp_path / "one", "mesh") == (0, [])
    files = sorted((tmp_path / "one/sinks/left").glob("*.jsonl"))
    kept = files[3].read_bytes()
    files[3].write_bytes(kept[kept.index(b"\n") + 1 :])
    code, violations = judged(tmp_path / "one", "mesh")
    assert (code, violations) == (1, ["as many records as in the account", "each number once"])
    files[3].write_bytes(kept)
    shutil.copy(files[3], files[3].with_name(files[3].name.replace("-e", "-e9")))
    code, violations = judged(tmp_path / "one", "mesh")
    assert code == 1
    assert violations == ["its files are consecutive", "as many records as in the account", "each number once"]


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.guarantee("I1", "I2", "I3", "I6", "I8", "I9")
def test_every_window_has_one_result_and_it_is_right(tmp_path: Path) -> None:
    # The first kills of this seed are of Spark's processes and of the runner. Two of them come while it recovers, so
    # that Spark, which starts in ten seconds of a processor, starts twice and not three times for them.
    told = chaos("windows", sized(4, 8), sized(1_200, 4_000), tmp_path / "one", seed=3018)
    assert {"kill spark", "kill jvm", "kill runner", "kill python"} <= told["faults"].keys()


def rows_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def assert_queried(told: dict[str, Any]) -> None:
    """Queries had answers meanwhile, and nothing was wrong with them."""
    (queries,) = [check for check in told["checks"] if "queries" in check["what"]]
    assert queries["result"] == "held"


@pytest.mark.timeout(600)
@pytest.mark.guarantee("I1", "I4", "I7", "I9", "I12")
def test_what_is_remembered_is_the_fold_of_the_records(tmp_path: Path) -> None:
    told = chaos("state", sized(2, 23), sized(1_500, 20_000), tmp_path / "one", "--keys", "300")
    assert_queried(told)

    # The oracle would have seen it: two outputs of a key in another order, or one that is not there.
    assert judged(tmp_path / "one", "state") == (0, [])
    # Rows by file; one of the files has several of a key.
    written = {file: rows_in(file) for file in (tmp_path / "one/sinks/totals").glob("*.jsonl")}
    file, rows = max(written.items(), key=lambda item: len(item[1]))
    number, other = next(
        (number, other)
        for number, row in enumerate(rows)
        for other in range(number + 1, len(rows))
        if rows[other]["key"] == row["key"]
    )
    kept = file.read_bytes()
    rows[number], rows[other] = rows[other], rows[number]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert judged(tmp_path / "one", "state") == (1, ["each record once, as the next of its key"])
    file.write_bytes(kept[kept.index(b"\n") + 1 :])
    code, violations = judged(tmp_path / "one", "state")
    assert code == 1
    # The state disagrees as well if it was the last row of its key.
    assert violations[:2] == ["as many records as in the account", "each record once, as the next of its key"]


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I4", "I7", "I9", "I12")
@pytest.mark.sweep
def test_what_is_remembered_in_redis_is_the_fold_of_the_records(tmp_path: Path) -> None:
    assert_queried(chaos("state", 8, 8_000, tmp_path / "one", "--keys", "300", "--ledger", "redis"))


@pytest.mark.timeout(600)
@pytest.mark.guarantee("I1", "I2", "I6", "I8", "I9")
@pytest.mark.sweep
def test_with_encryption_and_a_sandbox_every_record_is_there_once(tmp_path: Path) -> None:
    cannot = refusal(strict=True, network=False, limits=frozenset())
    if cannot is not None:
        give_up(f"there is no sandbox here: {cannot}")
    chaos("mesh", sized(3, 6), sized(2_000, 4_000), tmp_path / "one", "--secured")

    broker = tmp_path / "one/state/broker"
    assert "tls" in json.loads((broker / "access.json").read_text())
    assert "sandbox: strict" in (tmp_path / "one/pipeline/mesh.yaml").read_text()
