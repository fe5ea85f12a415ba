"""A run in a folder whose files have the names of Python's modules, and of packages that we use."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from millstream_runner.local.spark import DRIVER_MODULE
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import command

NAMES = [name for name in sys.stdlib_module_names if name.isidentifier() and not name.startswith("_")]
TRAP = "raise ImportError(f'{__file__} was imported')\n"


@pytest.fixture
def trapped(files: PipelineFiles) -> PipelineFiles:
    """The folder of the pipeline, with a file for each module."""
    for name in [*NAMES, "grpc", "google", "yaml", "nats", "uvloop", "numpy", "psutil", "pyspark"]:
        (files.directory / f"{name}.py").write_text(TRAP)
    return files


async def test_no_process_imports_from_the_users_folder(trapped: PipelineFiles) -> None:
    own = trapped.directory / "own"
    own.mkdir()
    (own / "helper.py").write_text("def same(value):\n    return value\n")
    (own / "email.py").write_text(
        "import email.message\nimport helper\n\ndef process(value):\n    return helper.same(value)\n"
    )
    path = trapped.write(
        trapped.generator(5) + "- name: map\n  udf: {python: 'own/email.py:process'}\n" + trapped.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    ended = await command(trapped.directory, "validate", path.name, "--import")
    assert ended.exit_code == 0, ended.err
    ended = await command(trapped.directory, "run", path.name)
    assert ended.exit_code == 0, ended.err
    assert len(trapped.rows("out")) == 5


async def test_nor_does_the_driver_of_spark(trapped: PipelineFiles) -> None:
    starting = [sys.executable, "-P", "-m", DRIVER_MODULE, "--help"]
    done = await asyncio.to_thread(
        subprocess.run, starting, cwd=trapped.directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
