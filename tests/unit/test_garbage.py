"""What outlives a full collection is not looked at again."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

_SCRIPT = """\
import gc, weakref
from millstream import garbage

class Ring:
    def __init__(self):
        self.own = self

garbage.freeze_what_stays()
gc.collect()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
ring = Ring()
seen = weakref.ref(ring)
gc.collect()
assert gc.get_freeze_count() > frozen + 1000, "what outlived it is looked at again"
del ring
gc.collect()
assert seen() is not None, "it was looked at again"
garbage.LOOKED_AT_AGAIN_S = {again}
gc.collect()
assert (seen() is None) is {found}
young = Ring()
seen = weakref.ref(young)
del young
gc.collect()
assert seen() is None, "what has not outlived one is found"
"""


@pytest.mark.process
@pytest.mark.parametrize(("again", "found"), [(-1.0, True), (3600.0, False)])
def test_what_outlives_a_full_collection(again: float, found: bool) -> None:
    before = list(gc.callbacks)
    script = _SCRIPT.format(again=again, found=found)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert gc.callbacks == before
