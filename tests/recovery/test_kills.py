"""Any process of a running pipeline is killed at random; nothing is lost, repeated or told differently to two sinks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.timeout(400)
@pytest.mark.guarantee("I1", "I2", "I6", "I9")
def test_both_sinks_hold_every_record_once_and_agree() -> None:
    command = [sys.executable, str(SCRIPT), "--records", "20000", "--kills", "10", "--seed", "42", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcome = json.loads(ended.stdout.splitlines()[-1])
    assert (outcome["lost"], outcome["repeated"], outcome["disagreeing"]) == (0, 0, 0)
    assert sum(outcome["kills"].values()) == 10
