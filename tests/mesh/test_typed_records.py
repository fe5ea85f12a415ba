"""Records that do not fit the type of their function, in a whole pipeline: named, and not tried again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream import codes
from tests.mesh.running import command

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

FUNCTIONS = """\
from dataclasses import dataclass

@dataclass
class Order:
    id: int
    price: float = 1.0

def doubled(order: Order) -> Order:
    return Order(order.id, order.price * 2)

def store(order: Order) -> None:
    if order.price > 2:
        print("stored", order)
"""
SOURCE = "- name: in\n  source: {file: {paths: [orders], format: lines}}\n"


def orders(directory: Path, *values: bytes) -> None:
    (directory / "typed.py").write_text(FUNCTIONS)
    (directory / "orders").write_bytes(b"\n".join(values) + b"\n")


async def test_a_record_that_does_not_fit_is_a_dead_letter_at_once(files: PipelineFiles, tmp_path: Path) -> None:
    orders(tmp_path, b'{"id": 1, "price": 2}', b'{"id": "2"}', b"junk", b'{"id": 3}')
    policy = "retryStrategy: {onFailure: deadLetter, backoff: {interval: 1h, steps: 9}}"
    files.write(
        SOURCE
        + f"- name: map\n  udf: {{python: 'typed.py:doubled', {policy}}}\n"
        + files.file_sink("out")
        + files.file_sink("dead"),
        ["in -> map", "map -> out", "{from: map, to: dead, kind: deadLetter}"],
    )
    # A single retry would wait for an hour.
    assert (await command(tmp_path, "run", "pipeline.yaml")).exit_code == 0
    assert files.rows("out") == [{"id": 1, "price": 4.0}, {"id": 3, "price": 2.0}]
    letters = {letter.value: letter for letter in files.envelopes("dead")}
    assert {letter.code for letter in letters.values()} == {codes.RECORD_MISFIT.id}
    assert letters[b'{"id": "2"}'].reason == (
        'the value does not fit Order: field `id` is "2", where a whole number (int) is expected'
    )
    assert letters[b"junk"].reason == "the value does not fit Order: it is not JSON: Expecting value at byte 0: 'junk'"


@pytest.mark.sweep
async def test_a_sink_that_stops_over_it_names_record_and_field_and_no_value(
    files: PipelineFiles, tmp_path: Path
) -> None:
    orders(tmp_path, b'{"id": 1, "price": "secret"}')
    vertices = "- name: to\n  sink: {udsink: {python: 'typed.py:store'}}\n"
    files.write(SOURCE + vertices, ["in -> to"], more="logging: {values: false}")
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 3, ended.err
    assert f"error[{codes.RECORD_MISFIT}]: to-0: p/to/in-to.0: " in ended.err
    assert "record to/in-to/0/" in ended.err
    assert (
        "the value does not fit Order: field `price` is a text of 6 characters (not shown), where a number" in ended.err
    )
    assert "secret" not in ended.err
