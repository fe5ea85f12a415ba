"""What `millstream init` makes works as it is: its tests, its cases, its pipeline, its README."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millstream.ports import free_ports
from millstream_runner.cli.arguments import TEMPLATES
from millstream_runner.cli.init import name_of
from millstream_runner.cli.main import main
from tests.mesh.running import Ended, called, command, start


def made(directory: Path, template: str) -> Path:
    """A new project."""
    project = directory / f"my {template}"
    assert main(["init", str(project), "--template", template]) == 0
    return project


async def passed(project: Path) -> None:
    """Its own tests, and its case."""
    ended = await command(project, "test")
    assert ended.exit_code == 0, ended.out + ended.err
    assert ended.out.count(".case.yaml: passed") == 1
    # Nothing of the project's own is touched.
    assert not (project / "out").exists()
    assert [path.name for path in (project / ".millstream").iterdir()] == ["schema.json"]


async def run(project: Path, *options: str) -> Ended:
    ended = await command(project, "run", "pipeline.yaml", *options)
    assert ended.exit_code == 0, ended.err
    return ended


async def start_over(project: Path) -> None:
    """As its README says."""
    readme = (project / "README.md").read_text()
    (line,) = [line for line in readme.splitlines() if line.endswith("# start over")]
    for typed in line.partition("#")[0].split(";"):
        program, *arguments = typed.split()
        if program == "rm":
            for name in arguments:
                (project / name).unlink()
        else:
            assert program == "millstream"
            ended = await command(project, *arguments)
            assert ended.exit_code == 0, ended.err


def rows(project: Path, sink: str) -> list[dict[str, object]]:
    files = sorted((project / "out" / sink).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


async def test_map(tmp_path: Path) -> None:
    project = made(tmp_path, "map")
    await passed(project)
    ended = await run(project)
    assert [len(rows(project, name)) for name in ("all", "large", "refused", "unreadable")] == [5, 2, 1, 1]
    assert {row["item"] for row in rows(project, "large")} == {"desk", "chair"}
    (refused,) = rows(project, "refused")
    assert (refused["vertex"], refused["reason"]) == ("price", "an order of 0 pieces")
    assert json.loads(str(refused["value"]))["item"] == "shelf"
    (unreadable,) = rows(project, "unreadable")
    assert (unreadable["vertex"], unreadable["value"]) == ("read", "not json")
    assert str(unreadable["reason"]).startswith("data/orders.jsonl:4: 'not json' is not a JSON value")
    # What the source cannot read is said, and not only counted; what the function gives up itself is not.
    assert "data/orders.jsonl:4: 'not json' is not a JSON value" in ended.err
    assert "It is sent to the dead-letter edge" in ended.err
    assert "an order of 0 pieces" not in ended.err
    # The last lines say what to do next.
    next_step = " ".join(ended.out.rpartition("\nnext: ")[2].split())
    assert next_step.startswith("look into out/large, out/all, out/refused and 1 more; change functions.py and `")

    await start_over(project)
    assert len(rows(project, "all")) == 5


@pytest.mark.sweep
async def test_state(tmp_path: Path) -> None:
    project = made(tmp_path, "state")
    await run(project)
    totals = {(row["customer"], row["number"]): row["total"] for row in rows(project, "all")}
    assert totals == {
        ("ada", 1): 79.0, ("ada", 2): 88.6, ("ada", 3): 163.6, ("alan", 1): 359.6, ("grace", 1): 420.0,
        ("grace", 2): 459.5
    }  # fmt: skip
    assert sorted(str(row["item"]) for row in rows(project, "first")) == ["chair", "desk", "lamp"]
    shown = await called(project, "state", "get", "account", "--key", "ada")
    assert shown.out.splitlines()[:2] == ["ada  total = 163.6", "ada  orders = 3"]


@pytest.mark.sweep
async def test_reduce(tmp_path: Path) -> None:
    project = made(tmp_path, "reduce")
    await run(project)
    assert [len(rows(project, name)) for name in ("minutes", "hot", "warmest")] == [7, 2, 3]
    assert [row["sensor"] for row in rows(project, "warmest")] == ["boiler", "boiler", "attic"]
    (attic, *_) = rows(project, "minutes")
    assert attic == {
        "sensor": "attic", "minute": "2026-01-05T09:00:00+00:00", "readings": 2, "mean": 20.0, "highest": 20.5
    }  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("template", ["async", "state", "reduce", "source", "sink", "http", "batch"])
async def test_its_tests_and_its_case(tmp_path: Path, template: str) -> None:
    await passed(made(tmp_path, template))


@pytest.mark.sweep
async def test_source(tmp_path: Path) -> None:
    project = made(tmp_path, "source")
    await run(project)
    readings = rows(project, "readings")
    assert len(readings) == 50
    assert readings[0] == {"sensor": "s0", "celsius": 15.6}


@pytest.mark.sweep
async def test_sink(tmp_path: Path) -> None:
    project = made(tmp_path, "sink")
    await run(project)
    await start_over(project)
    with closing(sqlite3.connect(project / "orders.db")) as database:
        orders = database.execute("select customer, item from orders").fetchall()
    assert sorted(orders) == [("ada", "lamp"), ("alan", "chair"), ("grace", "desk"), ("grace", "lamp")]
    (refused,) = rows(project, "refused")
    assert json.loads(str(refused["value"]))["customer"] == "edsger"


async def test_http(tmp_path: Path) -> None:
    port = free_ports()
    project = made(tmp_path, "http")
    pipeline = project / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("port: 8090", f"port: {port}"))
    order = json.dumps({"id": "1", "pieces": 2, "price": 9.5}).encode()
    request = urllib.request.Request(  # this machine's own
        f"http://127.0.0.1:{port}/vertices/receive", data=order, headers={"x-millstream-id-field": "id"}
    )
    async with start(project, "run", "pipeline.yaml", data=".millstream/my-http") as process:
        await process.until(lambda: "receive-0" in process.pids())

        def sent() -> bool:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        async with asyncio.timeout(60):
            while not await asyncio.to_thread(sent):  # noqa: ASYNC110  # until the source listens
                await asyncio.sleep(0.05)
        assert await asyncio.to_thread(sent)
        process.interrupt()
        assert (await process.ended()).exit_code == 0
    # The second time it had no effect.
    assert [row["total"] for row in rows(project, "orders")] == [19.0]


@pytest.mark.sweep
async def test_go(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go toolchain on the PATH: the template in Go is not built here")
    project = made(tmp_path, "go")
    for arguments in (["build", "-o", "words", "."], ["vet", "."]):
        built = await asyncio.to_thread(
            subprocess.run, [go, *arguments], cwd=project, capture_output=True, text=True, timeout=100, check=False
        )
        assert built.returncode == 0, built.stderr
    ended = await command(project, "test")
    assert ended.exit_code == 0, ended.out + ended.err
    assert "lines.case.yaml: passed" in ended.out


@pytest.mark.sweep
async def test_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = made(tmp_path, "connector")
    unknown = await called(project, "validate", "pipeline.yaml")
    assert unknown.exit_code == 2
    assert "myConnector" in unknown.err
    # As `pip install -e .` has it, but in a place of the test's own.
    site = tmp_path / "site"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "pip", *install, str(project)], check=True)
    monkeypatch.setenv("PYTHONPATH", str(site))
    tests = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-3000:]
    await run(project)
    await start_over(project)
    with closing(sqlite3.connect(project / "orders.db")) as database:
        orders = [
            json.loads(value)["item"] for (value,) in database.execute("SELECT value FROM records ORDER BY rowid")
        ]
    assert orders == ["lamp", "desk", "chair"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_every_project_has(tmp_path: Path, template: str, capsys: pytest.CaptureFixture[str]) -> None:
    project = made(tmp_path, template)
    ignored = (project / ".gitignore").read_text().splitlines()
    assert {".millstream/", "out/"} <= set(ignored)
    readme = (project / "README.md").read_text().splitlines()
    assert len(readme) == 10
    assert readme[0] == f"# my-{template}"
    assert f"name: my-{template}" in (project / "pipeline.yaml").read_text()
    others = {"millstream-sdk", ".millstream"}
    left = [path for path in project.rglob("*") if path.is_file() and others.isdisjoint(path.parts)]
    assert not [path for path in left if re.search(r"@\w+@", path.read_text())], "a place that was not filled"
    if template not in ("go", "connector"):
        launch = json.loads((project / ".vscode" / "launch.json").read_text())
        assert all(one["type"] == "debugpy" for one in launch["configurations"])
        modules = {one["module"] for one in launch["configurations"] if one["request"] == "launch"}
        # PyCharm has the same.
        shared = [ElementTree.parse(path).getroot() for path in (project / ".run").glob("*.run.xml")]
        options = [{item.get("name"): item.get("value") for item in one.iter("option")} for one in shared]
        assert all(one["MODULE_MODE"] == "true" for one in options)
        assert {one["SCRIPT_NAME"] for one in options} >= modules
    assert main(["init", str(project), "--template", template]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_pipeline_is_called_after_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Größe 2").mkdir()
    monkeypatch.chdir(tmp_path / "Größe 2")
    assert name_of(Path()) == "gr-e-2"
    assert name_of(Path("Orders_2026")) == "orders-2026"
    assert name_of(Path("---")) == "pipeline"
    assert len(name_of(Path("x" * 100))) == 63
