"""`millstream test`: what passes, what fails, and what a person reads then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mesh.running import command
from tests.support.sizes import first

FUNCTIONS = """\
import json
from millstream_udf import DeadLetter, Message

def price(value):
    order = json.loads(value)
    if order["pieces"] < 1:
        raise DeadLetter("an order of nothing")
    order["total"] = order["pieces"] * order["price"]
    return Message(json.dumps(order), keys=[order["customer"]])
"""
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: in
      source: {http: {port: 1}}
    - name: price
      udf: {python: "functions.py:price"}
    - name: out
      sink: {http: {url: "http://127.0.0.1:9/"}}
    - name: bad
      sink: {file: {path: bad}}
  edges:
    - {from: in, to: price}
    - {from: price, to: out}
    - {from: price, to: bad, kind: deadLetter}
"""
CASE = """\
inputs:
  in:
    - value: {customer: ada, pieces: 2, price: 3}
      time: "2026-01-05T09:00:00Z"
    - value: {customer: alan, pieces: 0, price: 3}
    - value: {customer: grace, pieces: 1, price: 3}
outputs:
  out:
    - value: {customer: grace, pieces: 1, price: 3, total: 3}
    - contains: {total: 6}
      keys: [ada]
      time: "2026-01-05T09:00:00Z"
  bad:
    - contains: {customer: alan}
      reason: order of nothing
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "orders.case.yaml").write_text(CASE)
    return tmp_path


async def test_a_case_that_passes(project: Path) -> None:
    ended = await command(project, "test")
    assert ended.exit_code == 0, ended.out + ended.err
    assert "tests/orders.case.yaml: passed" in ended.out
    as_json = json.loads((await command(project, "test", "-o", "json")).out)
    assert as_json["passed"] is True
    assert [(case["name"], case["passed"]) for case in as_json["cases"]] == [("tests/orders.case.yaml", True)]
    # Neither the port nor the target of the pipeline is touched, and nothing is left.
    assert {path.name for path in project.iterdir()} == {"functions.py", "pipeline.yaml", "tests"}


async def test_a_case_that_fails_shows_the_difference(project: Path) -> None:
    (project / "functions.py").write_text(FUNCTIONS.replace("* order", "+ order").replace("nothing", "0 pieces"))
    ended = await command(project, "test", "pipeline.yaml")
    assert ended.exit_code == 1
    assert "tests/orders.case.yaml: FAILED" in ended.out
    lines = [line.strip() for line in ended.err.splitlines()]
    assert "out: 0 of 2 expected records came, and 2 others" in lines
    assert '- line 9: {"customer": "grace", "pieces": 1, "price": 3, "total": 3}' in lines
    assert "value.total: expected 3, got 4" in lines
    assert "reason: expected 'order of nothing', got 'an order of 0 pieces'" in lines
    assert lines[-1] == "1 of 1 failed"


@pytest.mark.sweep
async def test_a_function_that_fails_is_shown_by_its_case(project: Path) -> None:
    (project / "functions.py").write_text(FUNCTIONS.replace('order["pieces"] < 1', "undefined"))
    without = [line for line in PIPELINE.splitlines() if "bad" not in line]
    (project / "pipeline.yaml").write_text("\n".join(without))
    (project / "tests" / "orders.case.yaml").write_text(CASE.partition("  bad:")[0])
    ended = await command(project, "test", "tests/orders.case.yaml")
    assert ended.exit_code == 1
    assert "in-0 failed" in ended.err
    assert "/price/in-price.0: the function failed on record" in ended.err
    assert "NameError: name 'undefined' is not defined" in ended.err


@pytest.mark.sweep
async def test_a_case_without_what_comes_out_by_surprise(project: Path) -> None:
    case = project / "tests" / "orders.case.yaml"
    case.write_text(CASE.partition("  bad:")[0])
    ended = await command(project, "test")
    assert ended.exit_code == 1
    assert "bad: 0 of 0 expected records came, and 1 other" in ended.err
    case.write_text(CASE.partition("  bad:")[0] + "  bad: any\n")
    assert (await command(project, "test")).exit_code == 0


@pytest.mark.sweep
async def test_functions_that_fail_their_tests(project: Path) -> None:
    (project / "test_functions.py").write_text(
        "import functions\n\ndef test_it():\n    assert functions.price is None\n"
    )
    (project / "tests" / "orders.case.yaml").unlink()
    ended = await command(project, "test")
    assert ended.exit_code == 1
    assert "1 failed" in ended.out


@pytest.mark.parametrize(
    ("change", "lines"),
    first(
        1,
        [
            (
                ("  in:", "  inn:"),
                [
                    (
                        "tests/orders.case.yaml:2:3: inputs.inn: pipeline pipeline.yaml has no source `inn` "
                        "(expected: one of in)"
                    )
                ],
            ),
            (
                ("value: {customer: alan", "valeu: {customer: alan"),
                ["there is no `valeu` here (expected: `value`)", "it has no value (expected: one of"],
            ),
            (('"2026-01-05T09:00:00Z"', "yesterday"), ["'yesterday' is not a time", "'yesterday' is not a time"]),
            (("outputs:", "  more: ["), ["tests/orders.case.yaml:"]),
        ],
    ),
)
async def test_a_case_that_is_wrong(project: Path, change: tuple[str, str], lines: list[str]) -> None:
    (project / "tests" / "orders.case.yaml").write_text(CASE.replace(*change))
    ended = await command(project, "test")
    assert ended.exit_code == 1
    for line in lines:
        assert line in ended.err
    assert "MS-2131" in ended.err


@pytest.mark.sweep
async def test_a_place_without_tests(project: Path) -> None:
    (project / "tests" / "orders.case.yaml").unlink()
    ended = await command(project, "test")
    assert ended.exit_code == 2
    assert "MS-2130" in ended.err
    ended = await command(project, "test", "nowhere")
    assert ended.exit_code == 2
    assert "nowhere does not exist" in ended.err
