"""What a beginner sees of ten things that go wrong at first: docs/first-mistakes.md is what is printed."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from millstream_vertex.pacing import FIRST_SLICE_RECORDS
from tests.mesh.running import called, command, start

PAGE = (Path(__file__).parents[2] / "docs/first-mistakes.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^`(\w+)`: .*?\n```\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))
"""What the page shows of each mistake."""

FILE = "{file: {paths: [orders.jsonl], format: jsonl}}"
UDF = "{python: 'price.py:price'}"
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: in
      source: %s
    - name: price
      udf: %s
    - name: out
      sink: {file: {path: out, format: jsonl, rolling: {maxAge: 200ms}}}
  edges:
    - {from: in, to: price}
    - {from: price, to: out}
"""
FUNCTION = """\
import json

def price(value):
    order = json.loads(value)
    return {"id": order["id"], "total": 2 * order["price"]}
"""


def given(directory: Path, *, source: str = FILE, udf: str = UDF, function: str = FUNCTION) -> Path:
    (directory / "orders.jsonl").write_text('{"id": 1, "price": 2, "at": "01.06.2024"}\n')
    (directory / "price.py").write_text(function)
    path = directory / "pipeline.yaml"
    path.write_text(PIPELINE % (source, udf))
    return path


def assert_shown(mistake: str, printed: str) -> None:
    """Each line that the page shows was printed, and no traceback of ours."""
    for line in SHOWN[mistake].splitlines():
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert re.search(f"^{pattern}$", printed, re.MULTILINE), f"not printed: {line}\nbut:\n{printed}"
    assert "millstream_runner" not in printed


@pytest.mark.parametrize(
    "mistake",
    ["typo", "package", *(pytest.param(one, marks=pytest.mark.sweep) for one in ("path", "window", "reduce"))],
)
async def test_what_validate_finds(mistake: str, tmp_path: Path) -> None:
    path = given(tmp_path)
    arguments: tuple[str, ...] = ()
    match mistake:
        case "typo":
            path.write_text(path.read_text().replace("udf:", "udff:"))
        case "path":
            given(tmp_path, source="{file: {paths: [order.jsonl], format: jsonl}}")
        case "window":
            given(tmp_path, udf="{groupBy: {keyed: true}, python: 'price.py:price'}")
        case "package":
            given(tmp_path, function="import no_such_package\n" + FUNCTION)
            arguments = ("--import",)
        case "reduce":
            given(tmp_path, function="def price(keys, records, window):\n    return b''\n")
            arguments = ("--import",)
    ended = await called(tmp_path, "validate", "pipeline.yaml", *arguments)
    assert ended.exit_code == 2
    assert_shown(mistake, ended.err)


@pytest.mark.parametrize(
    ("mistake", "exit_code"),
    [("json", 2), *(pytest.param(*one, marks=pytest.mark.sweep) for one in (("number", 3), ("time", 2)))],
)
async def test_what_a_run_stops_over(mistake: str, exit_code: int, tmp_path: Path) -> None:
    given(tmp_path)
    match mistake:
        case "number":
            policy = "retryStrategy: {backoff: {steps: 1}}"
            udf = f"{{python: 'price.py:price', {policy}}}"
            given(tmp_path, udf=udf, function=FUNCTION.replace('{"id": order["id"], "total": 2 * order["price"]}', "4"))
        case "json":
            with (tmp_path / "orders.jsonl").open("a") as file:
                file.write('{"id": 2, "price": 3\n')
        case "time":
            given(tmp_path, source=f"{FILE[:-1]}, eventTime: {{field: at, format: epoch_ms}}}}")
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == exit_code, ended.err
    assert_shown(mistake, ended.err)


async def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given(tmp_path, source=f"{{http: {{port: {taken.getsockname()[1]}}}}}")
        ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 2
    assert_shown("port", ended.err)


@pytest.mark.sweep
async def test_a_run_that_is_killed_and_one_whose_file_is_changed(tmp_path: Path) -> None:
    # All but the first orders wait for a file: what is changed while it runs is changed while it runs. A function
    # is given these first, and they are committed.
    held_up = f"order['id'] > {FIRST_SLICE_RECORDS} and not os.path.exists('go')"
    waiting = f"    while {held_up}:\n        time.sleep(0.01)\n    return"
    held = "import os\nimport time\n" + FUNCTION.replace("    return", waiting, 1)
    path = given(tmp_path, function=held)
    orders = 3000
    (tmp_path / "orders.jsonl").write_text("".join(f'{{"id": {n}, "price": {2 * n}}}\n' for n in range(1, orders + 1)))
    async with start(tmp_path, "run", "pipeline.yaml") as running:
        await running.until(lambda: running.records("in") > 0)
        path.write_text(path.read_text() + "# changed\n")
        await running.until(lambda: "continues with the earlier version" in running.err())
        assert_shown("change", running.err())
        running.kill()
    (tmp_path / "go").touch()
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    assert_shown("kill", ended.out)
    rows = [line for file in sorted((tmp_path / "out").glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert sorted(json.loads(row)["id"] for row in rows) == list(range(1, orders + 1))
    assert_shown("dict", "\n".join(sorted(rows)[:1]))


def test_every_mistake_of_the_page_is_made() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert not [mistake for mistake in SHOWN if f'"{mistake}"' not in source]
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 10
