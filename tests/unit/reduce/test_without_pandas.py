"""pyarrow can be kept from importing pandas; in a process of its own, because it looks for it only once."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys

from millstream_reduce.without_pandas import forgo_pandas
forgo_pandas()
import pyarrow as pa
assert pa.table({"keys": [["a"], ["b"]]}).column("keys").to_pylist() == [["a"], ["b"]]
assert "pandas" not in sys.modules
import pandas
forgo_pandas()
assert pa.Table.from_pandas(pandas.DataFrame({"n": [1, 2]})).num_rows == 2
"""


@pytest.mark.process
def test_pyarrow_works_without_pandas_and_who_needs_it_still_has_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
