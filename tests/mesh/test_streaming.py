"""A vertex whose outputs go on while its function makes them, in a run with kills: they come once, in one commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.mesh.running import start

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(900)
OUTPUTS = 6_000
FUNCTIONS = f'''
import json, os, pathlib, threading

def pages(value):
    """Makes the last outputs of the second record when the next function has the first ones, and the test lets it."""
    number = json.loads(value)["number"]
    for page in range({OUTPUTS}):
        if number == 1 and page == {OUTPUTS} - 1:
            while not pathlib.Path("go on").exists():
                threading.Event().wait(0.005)
        yield json.dumps({{"number": number, "page": page}})

def seen(value):
    if json.loads(value) == {{"number": 1, "page": 0}}:
        with open("seen", "a") as file:
            file.write(str(os.getpid()) + chr(10))
    return value
'''


@pytest.mark.guarantee("I1")
async def test_outputs_go_on_before_the_last_and_count_once_whatever_is_killed(
    files: PipelineFiles, tmp_path: Path
) -> None:
    (tmp_path / "streamed.py").write_text(FUNCTIONS)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in range(3)))
    files.write(
        "- {name: in, source: {file: {paths: [in.jsonl], format: jsonl}}}\n"
        '- {name: pages, udf: {python: "streamed.py:pages", streaming: true}}\n'
        '- {name: seen, udf: {python: "streamed.py:seen"}}\n' + files.file_sink("out"),
        ["{from: in, to: pages}", "{from: pages, to: seen, chain: true}", "{from: seen, to: out}"],
    )
    seen = tmp_path / "seen"
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        # What the second function has of the second record counts only with the rest, which does not come.
        await run.until(seen.exists)
        psutil.Process(await run.pid("in-0")).kill()
        await run.until(lambda: len(seen.read_text().split()) == 2)
        for process in psutil.Process(run.process.pid).children(recursive=True):
            if "streamed.py:pages" in process.cmdline():
                process.kill()
        (tmp_path / "go on").touch()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert json.loads(ended.out.splitlines()[-1])["account"]["balanced"]
    rows = [(row["number"], row["page"]) for row in files.rows("out")]
    assert rows == [(number, page) for number in range(3) for page in range(OUTPUTS)]
