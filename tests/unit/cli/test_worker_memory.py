"""The option of `millstream run` for the memory of a worker."""

from __future__ import annotations

import pytest

from millstream import codes
from millstream.limits import MIB
from millstream_runner.cli.run import worker_memory
from tests.support.errors import raises


def test_a_size_as_in_pipeline_files() -> None:
    assert worker_memory(None) is None
    assert worker_memory("256Mi") == 256 * MIB
    assert worker_memory("4Gi") == 4096 * MIB


@pytest.mark.parametrize("text", ["", "4", "much", "255Mi", "-1Gi"])
def test_what_no_worker_could_live_with_is_refused(text: str) -> None:
    with raises(codes.OPTION_VALUE, match="--worker-memory"):
        worker_memory(text)
