"""Which allocator Arrow has in the processes of a pipeline."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
from millstream import arrow_memory
arrow_memory.use_the_heap()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.process
@pytest.mark.parametrize(("chosen", "taken"), [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}, "mimalloc")])
def test_arrow_uses_the_heap_unless_the_user_has_chosen(chosen: dict[str, str], taken: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}
    found = subprocess.check_output([sys.executable, "-c", _PROGRAM], env=environment | chosen, text=True)
    assert found.strip() == taken
