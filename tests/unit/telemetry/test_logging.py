"""Logs, as a machine and as a person reads them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from io import StringIO
from typing import Any

import pytest

from millstream import codes
from millstream.errors import DamageError
from millstream.telemetry.logging import configure_logging, log_lane
from tests.support.children import together

log = logging.getLogger("millstream.test")


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_an_object_with_who_and_what() -> None:
    stream = StringIO()
    configure_logging("flights", "clean", 2, stream=stream)
    log.warning("retrying %d records", 5, extra={"sequence": 17, "where": object})
    (line,) = lines(stream)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        "level": "warning",
        "message": "retrying 5 records",
        "logger": "millstream.test",
        "pipeline": "flights",
        "vertex": "clean",
        "replica": 2,
        "sequence": 17,
        "where": str(object),
    }


def test_the_code_of_an_error_is_a_field() -> None:
    error = DamageError(codes.MARK_UNREADABLE, "the mark cannot be read")
    stream = StringIO()
    configure_logging("flights", "clean", stream=stream)
    log.error("%s", error)
    log.error("%s; asking again", "the broker is away")
    try:
        raise error
    except DamageError:
        log.exception("it failed")
    said, other, raised = lines(stream)
    assert (said["message"], said["code"]) == ("the mark cannot be read", "MS-5002")
    assert "code" not in other
    assert raised["code"] == "MS-5002"
    plain = StringIO()
    configure_logging("flights", "clean", stream=plain, human=True)
    log.error("%s", error)
    assert plain.getvalue().endswith("the mark cannot be read code=MS-5002\n")


def test_an_exception_stays_on_its_line() -> None:
    stream = StringIO()
    configure_logging("flights", "clean", stream=stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed")
    (line,) = lines(stream)
    assert line["message"] == "it failed"
    assert "ValueError: two\nlines" in line["exception"]


async def test_a_lane_and_the_tasks_it_starts_carry_its_name() -> None:
    stream = StringIO()
    configure_logging("flights", "clean", stream=stream)

    async def work(name: str) -> None:
        log.info(name)

    async def lane(key: str) -> None:
        with log_lane(key):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(work(f"work of {key}"))

    await together(lane("in-clean.0"), lane("in-clean.1"))
    log.info("outside")
    assert {line["message"]: line.get("lane") for line in lines(stream)} == {
        "work of in-clean.0": "in-clean.0",
        "work of in-clean.1": "in-clean.1",
        "outside": None,
    }


def test_a_second_configuration_replaces_the_first() -> None:
    first, second = StringIO(), StringIO()
    configure_logging("", "clean", stream=first)
    configure_logging("flights", "clean", level="warning", stream=second)
    log.info("not told")
    log.warning("told")
    assert first.getvalue() == ""
    assert [line["message"] for line in lines(second)] == ["told"]


def test_a_person_reads_a_plain_line() -> None:
    stream = StringIO()
    configure_logging("flights", "clean", 1, stream=stream, human=True)
    with log_lane("in-clean.0"):
        log.info("ready", extra={"sequence": 17})
    assert stream.getvalue().split(maxsplit=1)[1] == "INFO    clean/1 in-clean.0 ready sequence=17\n"
