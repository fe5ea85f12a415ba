"""Commands that need packages of an extra, where it is not installed: the message says what to install."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.children import started
from tests.support.sizes import first

LIMIT_S = 180.0
WITHOUT = """\
import sys
from importlib.machinery import PathFinder

from millstream.missing_packages import OF_REDUCES
from millstream_runner.cli.main import main


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in OF_REDUCES else PathFinder.find_spec(name, path, target)


sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "command", first(1, ["spark check", "spark prepare", "bench reduce", "chaos windows --kills 1 --dir chaos"])
)
async def test_what_is_missing_is_named_with_its_remedy(tmp_path: Path, command: str) -> None:
    async with started(
        sys.executable,
        "-c",
        WITHOUT,
        *command.split(),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    ) as process:
        _, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 2, err.decode()
    assert "pip install 'millstream[reduce]'" in err.decode()
    assert "defect" not in err.decode()
