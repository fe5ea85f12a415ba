"""Secrets of pipelines: whatever runs or fails, no output, message, file, command line or span has one in it."""

from __future__ import annotations

import asyncio
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.mesh.running import Running, command, start
from tests.security.outside_secrets import KINDS, Outside, open_outside
from tests.support.children import started
from tests.unit.telemetry.collector import Collector, open_collector

LIGHT = ("web",)
"""Those whose servers start in a moment: a token, a header."""
SOME = [kind if kind in LIGHT else pytest.param(kind, marks=pytest.mark.sweep) for kind in KINDS]
RUNNING = (
    *("validate pipeline.yaml", "validate --online pipeline.yaml", "validate -o json pipeline.yaml", "connectors"),
    *("graph pipeline.yaml", "graph --format html pipeline.yaml", "compile pipeline.yaml", "status", "status -o json"),
    *("compile --secrets pipeline.yaml", "logs", "logs -o json", "audit", "peek in-out", "tap in-out --duration 1s"),
    *("doctor", "explain MS-2514"),
)
"""Commands while the pipeline runs."""
ENDED = ("status", "logs", "repair pipeline.yaml", "watermark pipeline.yaml", "deadletters list --stored pipeline.yaml")
"""Commands after that."""
CALLING = """
import sys
from millstream_runner.cli.main import main
for line in sys.argv[1:]:
    code = main([*line.split(), "--debug"])
    # A machine may lack something for other pipelines.
    assert code == 0 or line == "doctor", (line, code)
"""
"""Calls one command after the other, in one process: most of the time of a command is for its imports."""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the programs of a test keep temporary files. Its path is short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@asynccontextmanager
async def watched(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector of what runs in the directory tell, and the place of the mounted Secret."""
    monkeypatch.setenv("MILLSTREAM_SECRETS", str(directory / "mounted"))
    async with open_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        yield collector


def held_by(text: str | bytes, forms: set[bytes]) -> list[bytes]:
    """The forms of secrets in a text."""
    data = text.encode() if isinstance(text, str) else text
    return [form for form in forms if form in data]


def files_with(root: Path, forms: set[bytes]) -> list[str]:
    """The files in a directory with a secret in them."""
    found = []
    for path in root.rglob("*"):
        try:
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and held_by(path.read_bytes(), forms):
                found.append(str(path))
        except FileNotFoundError:
            # It was temporary.
            continue
    return found


def command_lines(running: Running) -> str:
    family = [psutil.Process(running.process.pid)]
    family += family[0].children(recursive=True)
    lines = []
    for process in family:
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return "\n".join(lines)


def wide(root: Path) -> list[str]:
    """What another user may read or write in a directory."""
    return [
        f"{path} {oct(path.lstat().st_mode)}"
        for path in root.rglob("*")
        if not path.is_symlink() and not path.is_socket() and path.lstat().st_mode & 0o077
    ]


def told(collector: Collector) -> str:
    """All that a collector got."""
    return repr((collector.spans, collector.all_metrics, collector.logs, collector.resource))


async def fed(running: Running, outside: Outside, directory: Path) -> None:
    """Give records to the pipeline until each sink and source has had some."""
    vertices, given = (*outside.sinks, *outside.sources), 0

    def look() -> bool:
        nonlocal given
        with (directory / "in.jsonl").open("a") as file:
            file.write(f'{{"number": {given}}}\n')
        given += 1
        return all(running.records(vertex) for vertex in vertices)

    await running.until(look)


@pytest.mark.timeout(900)  # it may start the server of its kind
@pytest.mark.parametrize("kind", SOME)
async def test_a_run_that_uses_a_secret_shows_it_nowhere(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    arguments = ("run", "pipeline.yaml", "--log-level", "debug", "--report", "report.html", "-o", "json")
    async with (
        open_outside(kind, request, tmp_path) as outside,
        watched(directory, monkeypatch) as collector,
    ):
        outside.write(directory)
        forms = outside.forms()
        async with start(directory, *arguments) as running:
            await fed(running, outside, directory)
            assert not held_by(command_lines(running), forms)
            assert not await asyncio.to_thread(files_with, temporary, forms)
            running.interrupt()
            ended = await running.ended()
    assert ended.exit_code == 0, ended.err
    assert not held_by(ended.out + ended.err + told(collector), forms)
    shutil.rmtree(directory / "mounted")
    assert not files_with(directory, forms)
    assert not files_with(temporary, forms)
    assert not wide(directory / ".millstream")


@pytest.mark.sweep
@pytest.mark.timeout(900)  # it may start the server of its kind
@pytest.mark.parametrize("kind", SOME)
async def test_a_secret_that_is_refused_is_shown_nowhere(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    async with (
        open_outside(kind, request, tmp_path) as outside,
        watched(directory, monkeypatch) as collector,
    ):
        outside.write(directory, outside.wrong)
        forms = outside.forms(outside.wrong)
        checked = await command(directory, "validate", "--online", "--debug", "pipeline.yaml")
        async with start(directory, "run", "--debug", "pipeline.yaml", "--log-level", "debug") as running:
            (directory / "in.jsonl").write_text('{"number": 1}\n')
            ended = await running.ended()
    assert ended.exit_code == 2, ended.err
    assert "MS-2514" in ended.err
    assert not held_by(checked.out + checked.err + ended.out + ended.err + told(collector), forms)
    shutil.rmtree(directory / "mounted")
    assert not files_with(directory, forms)
    assert not files_with(temporary, forms)


async def test_no_command_shows_a_secret(
    request: pytest.FixtureRequest, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()

    async def call(*lines: str) -> None:
        printed, said = asyncio.subprocess.PIPE, asyncio.subprocess.PIPE
        async with started(
            sys.executable, "-c", CALLING, *lines, cwd=directory, stdout=printed, stderr=said
        ) as process:
            out, err = await process.communicate()
        assert process.returncode == 0, (out + err).decode()
        assert not held_by(out + err, forms), (out + err).decode()

    async with open_outside("redis", request, tmp_path) as outside, watched(directory, monkeypatch):
        outside.write(directory)
        forms = outside.forms()
        async with start(directory, "run", "pipeline.yaml") as running:
            await fed(running, outside, directory)
            await call(*RUNNING)
            running.interrupt()
            assert (await running.ended()).exit_code == 0
        await call(*ENDED)
