"""The Go SDK by Go's own tools, its page, and what only the whole program shows."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from millstream.spec.protocols import FunctionKind
from millstream.udf.function import open_local_function
from millstream.udf.sidecar import SidecarSpec
from tests.contract.udf.conftest import GO_EXAMPLE, NAME, frame_of, values_of
from tests.support.go_programs import run_go

ROOT = Path(__file__).parents[3]
SDK = ROOT / "sdk" / "go"
PAGE = (ROOT / "docs/udf-go.md").read_text()
BLOCKS = re.findall(r"^`(examples/udf-go/\S+)`\n\n```go\n(.*?)```", PAGE, re.M | re.S)


@pytest.mark.parametrize(
    "module", [pytest.param(SDK, id="sdk"), pytest.param(GO_EXAMPLE, id="examples", marks=pytest.mark.sweep)]
)
def test_go_tests_vet_and_format(go: str, module: Path) -> None:
    # `go test` runs a part of `go vet` only.
    for arguments in (["vet", "./..."], ["test", "./..."]):
        ran = run_go(arguments, module)
        assert ran.returncode == 0, f"go {' '.join(arguments)}:\n{ran.stdout}{ran.stderr}"
    gofmt = str(Path(go).resolve().parent / "gofmt")
    unformatted = subprocess.run([gofmt, "-l", "."], cwd=module, capture_output=True, text=True, timeout=60, check=True)
    assert unformatted.stdout == ""


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_every_block_of_the_page_is_in_its_file(name: str, code: str) -> None:
    assert code in (ROOT / name).read_text()


def test_the_page_has_blocks() -> None:
    assert len(BLOCKS) >= 4


async def test_the_pipeline_says_how_many_records_are_worked_on_at_once(go_command: list[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    env = {"MILLSTREAM_UDF_CONCURRENCY": "2"}
    spec = SidecarSpec(go_command, "udf", NAME.pipeline, NAME.vertex, env=env, stop_timeout_s=10)
    async with (
        asyncio.timeout(60),
        open_local_function(spec, log=print) as sidecar,
        sidecar.open_map(FunctionKind.MAP, NAME) as stream,
        asyncio.TaskGroup() as tasks,
    ):
        assert sidecar.description.concurrency == 2
        waiting = tasks.create_task(stream.call(frame_of([b"wait:%s" % str(gate).encode()]), watermark_us=0))
        while not gate.with_suffix(".begun").exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.005)
        # A slow call holds up no other.
        assert values_of(await stream.call(frame_of([b"a", b"b"]), watermark_us=0)) == [b"A", b"B"]
        assert not waiting.done()
        gate.touch()
        await waiting
