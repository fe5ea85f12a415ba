"""A vertex process that was started in a wrong way, or in a wrong place: a message for its operator, no stack trace."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from millstream.buffers.jetstream.server import open_nats_server
from millstream.plan import resolved
from millstream.spec.loading import load
from tests.mesh.conftest import PipelineFiles
from tests.support.children import started
from tests.support.sizes import sized

LIMIT_S = 180
NOWHERE = "nats://127.0.0.1:1"
MAIN = "import sys; from millstream_worker.__main__ import main; sys.exit(main(sys.argv[1:]))"
NO_TEMPORARY_DIRECTORY = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/no-such-directory']; "
NO_NUMPY = "import sys; sys.modules['numpy'] = None; "
REDUCE = """\
- name: map
  udf: {groupBy: {window: {fixed: {length: 1s}}}, sql: {query: SELECT count(*) AS n FROM window}}
"""


def resolve(files: PipelineFiles, middle: str) -> Path:
    path = files.write(files.generator(10) + middle + files.file_sink("out"), ["in => map", "map -> out"])
    loaded = load(path)
    file = path.with_name("pipeline.json")
    file.write_text(resolved.dump(loaded.plan, loaded.base_dir))
    return file


async def vertex(*options: str, before: str = "") -> tuple[int | None, str]:
    """Exit code of a vertex process that was started so, and the last message it logged."""
    async with (
        asyncio.timeout(LIMIT_S),
        started(sys.executable, "-c", before + MAIN, *options, stderr=asyncio.subprocess.PIPE) as process,
    ):
        _, err = await process.communicate()
    text = err.decode()
    assert "Traceback" not in text
    last = text.splitlines()[-1]
    return process.returncode, json.loads(last)["message"] if last.startswith("{") else last


async def test_options_that_do_not_fit_the_pipeline(files: PipelineFiles, tmp_path: Path) -> None:
    file = resolve(files, files.function("identity"))
    (tmp_path / "broken.json").write_bytes(b"\xff")
    wrong = (
        (("--vertex", "nope"), "--vertex: pipeline p has no vertex nope; it has in, map, out"),
        (("--vertex", "in", "--replica", "3"), "--replica: vertex in of pipeline p has 1 replica, numbered from 0"),
        (("--vertex", "in", "--replica", "-1"), "there is no replica -1"),
        (("--vertex", "in", "--pipeline", str(tmp_path / "pipeline.yaml")), "this is not a resolved pipeline"),
        (("--vertex", "in", "--pipeline", str(tmp_path / "none.json")), "No such file or directory"),
        (("--vertex", "in", "--pipeline", str(tmp_path / "broken.json")), "cannot be read"),
        (("--vertex", "in", "--log-level", "loud"), "--log-level: invalid choice: 'LOUD'"),
    )
    for options, said in wrong[:: sized(3, 1)]:
        code, message = await vertex("--pipeline", str(file), "--broker", NOWHERE, *options)
        assert code == 2, (options, message)
        assert said in message


@pytest.mark.sweep
async def test_a_machine_without_a_temporary_directory(files: PipelineFiles, tmp_path: Path) -> None:
    file = resolve(files, files.function("identity"))
    async with open_nats_server(tmp_path / "broker") as server:
        broker = ("--broker", server.url, "--broker-access", str(server.access_file))
        options = ("--pipeline", str(file), "--vertex", "map", *broker)
        code, message = await vertex(*options, before=NO_TEMPORARY_DIRECTORY)
    assert code == 4
    assert "there is no directory for the socket of a function: set TMPDIR" in message


async def test_a_reduce_without_the_packages_it_needs(files: PipelineFiles, tmp_path: Path) -> None:
    file = resolve(files, REDUCE)
    async with open_nats_server(tmp_path / "broker") as server:
        broker = ("--broker", server.url, "--broker-access", str(server.access_file))
        options = ("--pipeline", str(file), "--vertex", "map", *broker)
        places = ("--windows-dir", str(tmp_path / "windows"), "--spark", "unix:/nowhere")
        code, message = await vertex(*options, *places, before=NO_NUMPY)
    assert code == 2
    assert "this vertex needs the package numpy, which is not installed: `pip install 'millstream[reduce]'`" in message
