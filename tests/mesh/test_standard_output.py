"""Standard output is a target like any other: records and results reach it, or the command says that they did not.

Every command is run with a standard output that is full, and with one that has no reader.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.descriptors import PIPE_CLOSED
from millstream.errors import InfrastructureError
from millstream_runner.cli.main import main
from tests.mesh.running import start
from tests.support.children import started
from tests.unit.cli.test_grammar import LEAVES

RECORDS = 4000
"""Their lines are more than a pipe takes."""
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {file: {paths: [in.txt]}}}
    - {name: out, sink: {log: {}}}
    - {name: two, sink: {log: {}}}
  edges:
    - {from: in, to: out}
    - {from: in, to: two}
"""
RESULTS: Mapping[tuple[str, ...], Sequence[str]] = {
    ("audit",): ["-o", "json"],
    ("compile",): ["p.yaml"],
    ("completion",): ["bash"],
    ("connectors",): [],
    ("deadletters", "list"): ["--stored"],
    ("explain",): ["MS-4301"],
    ("graph",): ["p.yaml"],
    ("init",): ["--list"],
    ("logs",): [],
    ("repair",): ["p.yaml"],
    ("run",): ["--help"],
    ("schema",): [],
    ("status",): ["-o", "json"],
    ("validate",): ["p.yaml"],
    ("version",): [],
    ("watermark",): ["p.yaml"],
}
"""Commands that print a result here, with arguments; of the others, their help is printed."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline."""
    path = tmp_path_factory.mktemp("printing")
    (path / "p.yaml").write_text(PIPELINE, encoding="utf-8")
    (path / "in.txt").write_text("".join(f"é{number}\n" for number in range(RECORDS)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def printed(directory: Path) -> Sequence[str]:
    """The lines of three runs: into a full device, into a pipe whose reader ends, and into a file of another encoding,
    with the other descriptors closed."""
    return asyncio.run(_runs(directory))


async def _runs(directory: Path) -> Sequence[str]:
    full = os.open("/dev/full", os.O_WRONLY)
    async with start(directory, "run", "p.yaml", out=full) as running:
        os.close(full)
        ended = await running.ended()
    assert (ended.exit_code, "MS-4301" in ended.err, "MS-7001" in ended.err) == (4, True, False), ended.err

    reader, writer = os.pipe()
    async with start(directory, "run", "p.yaml", out=writer) as running:
        os.close(writer)
        with os.fdopen(reader, "rb") as lines:
            first = [lines.readline().decode(), lines.readline().decode()]
        ended = await running.ended()
    assert (ended.exit_code, "error" in ended.err) == (PIPE_CLOSED, False), ended.err

    with (directory / "rest").open("wb") as rest:
        last = 'PYTHONIOENCODING=latin-1 exec "$0" -m millstream_runner run --quiet p.yaml <&- 2>&-'
        async with started("sh", "-c", last, sys.executable, cwd=directory, stdout=rest) as process:
            assert await process.wait() == 0
    return [*first, *(directory / "rest").read_text(encoding="latin-1").splitlines()]


def test_what_was_not_printed_is_not_committed(printed: Sequence[str]) -> None:
    lines = [json.loads(line) for line in printed]
    for sink in ("out", "two"):
        found = {line["value"] for line in lines if line["id"].startswith(f"{sink}/")}
        assert found == {f"é{number}" for number in range(RECORDS)}, sink


@pytest.mark.usefixtures("printed")
@pytest.mark.parametrize("is_closed", [False, True], ids=["full", "closed"])
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_no_command_loses_its_result(
    path: tuple[str, ...],
    is_closed: bool,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(directory)
    with _refusing(monkeypatch, is_closed=is_closed):
        code = main([*path, *RESULTS.get(path, ["--help"])])
    err = capsys.readouterr().err
    if is_closed:
        assert (code, err) == (PIPE_CLOSED, "")
    else:
        assert code == InfrastructureError.exit_code
        assert "error[MS-4301]: cannot write to standard output: No space left on device" in err


@contextmanager
def _refusing(monkeypatch: pytest.MonkeyPatch, *, is_closed: bool) -> Iterator[None]:
    if is_closed:
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open("/dev/full", os.O_WRONLY)
    with monkeypatch.context() as patched, os.fdopen(writer, "w", encoding="utf-8") as out:
        patched.setattr(sys, "stdout", out)
        yield
