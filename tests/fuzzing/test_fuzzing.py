"""Bytes from outside never make a decoder do anything but what it declares.

`benchmarks/fuzz.py` looks longer. What it has found is in `found/`, and a part of what it kept in `corpus/`; both are
tried here as they are, and then changed.
"""

from __future__ import annotations

import resource
import time

import pytest

from tests.fuzzing.mutation import corpus, inputs
from tests.fuzzing.targets import TARGETS
from tests.support.sizes import sized

INPUTS = sized(600, 1500)
"""A target; the whole takes half a minute on a quiet machine."""
INPUT_S_MAX = 10.0
"""Processor time of one input. A hang is a finding too."""
GROWTH_KIB_MAX = 256 * 1024
"""Of the process's memory: no input of 4 KiB is worth so much."""


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    target = TARGETS[name]
    seeds = [*target.seeds(), *corpus(name)]
    target.run(seeds[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in (b"", *seeds, *inputs(seeds, INPUTS, seed=20)):
        started = time.process_time()
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"{name}: {data!r}") from error
        assert time.process_time() - started < INPUT_S_MAX, data
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB_MAX
