"""What functions log and trace, as it arrives at the vertex and at a collector."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any

import pytest

from millstream.errors import UdfError
from millstream.spec.protocols import FunctionKind
from millstream.telemetry.logging import configure_logging
from millstream.udf.function import LocalFunction, open_local_function
from millstream.udf.program_lines import parse_line
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_udf.log_form import LEVEL_VARIABLE
from millstream_worker.programs import program_logger
from tests.contract.udf.conftest import HERE, NAME, frame_of
from tests.unit.telemetry.collector import attributes, open_collector

PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


class Log:
    """A vertex's log, as lines of JSON."""

    def __init__(self) -> None:
        self.stream = StringIO()
        configure_logging("flights", "clean", 0, stream=self.stream, human=False)

    def entries(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line.get("role") == "udf"]


@pytest.fixture
def log() -> Iterator[Log]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield Log()
    root.setLevel(level)
    root.handlers[:] = handlers


@asynccontextmanager
async def running(command: Sequence[str], level: str = "info", **env: str) -> AsyncIterator[LocalFunction]:
    spec = SidecarSpec(
        command, "udf", NAME.pipeline, NAME.vertex, env={LEVEL_VARIABLE: level, **env}, stop_timeout_s=10
    )
    async with asyncio.timeout(60), open_local_function(spec, log=program_logger("udf")) as sidecar:
        yield sidecar


async def call(name: str, values: Sequence[bytes], level: str = "info", **env: str) -> None:
    command = python_command(f"{HERE / 'logging_functions.py'}:{name}")
    async with running(command, level, **env) as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        answer = await stream.call(frame_of(values), watermark_us=0, attempt=2, traceparent=PARENT)
        assert not answer.error


@pytest.mark.parametrize("kind", ["plain", "threaded", "waiting", "batched"])
async def test_level_fields_lane_attempt_and_trace_arrive_and_an_exception_is_one_record(log: Log, kind: str) -> None:
    await call(kind, [b"7"])
    entries = log.entries()
    of_call = {"lane": NAME.lane, "attempt": 2, "trace_id": "ab" * 16, "role": "udf", "stream": "stderr"}
    for entry in entries:
        assert entry.pop("time")
        assert (entry.pop("pipeline"), entry.pop("vertex"), entry.pop("replica")) == ("flights", "clean", 0)
    text = [entry for entry in entries if entry["stream"] == "stdout"]
    assert [(entry["level"], entry["message"]) for entry in text] == [("info", "plain text")]
    late, other, failed = [entry for entry in entries if entry["stream"] == "stderr"]
    function = {"logger": "millstream_udf.function", **of_call}
    assert late == {"level": "warning", "message": "7 is late", "order": 7, "name_of": ["a", "b"], **function}
    assert other == {"level": "error", "message": "no context here", "logger": "shop.orders", **of_call}
    assert failed.pop("exception").endswith("ValueError: two\nlines")
    assert failed == {"level": "error", "message": "it failed", **function}


async def test_the_level_of_the_vertex_is_that_of_its_functions(log: Log) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    await call("plain", [b"7"], level="debug")
    assert "for those who want to know" in [entry["message"] for entry in log.entries()]


async def test_a_record_that_is_longer_than_a_line_is_cut_and_stays_one_record(log: Log) -> None:
    await call("long", [b"7"])
    first, second = log.entries()
    assert (first["level"], second["level"]) == ("warning", "warning")
    assert "(100,000 characters)" in first["message"]
    assert "(100,000 characters)" in first["much"]
    assert second["logger"] == "shop.orders"


async def test_a_program_in_any_language_writes_such_lines(log: Log) -> None:
    line = '{"millstream_log": 1, "level": "error", "message": "from a shell", "order": 7, "name": "Ada", "args": [1]}'
    other = '{"level": "error", "message": "JSON of another kind"}'
    script = f"echo {shlex.quote(line)}; echo {shlex.quote(other)} >&2; exit 2"
    with pytest.raises(UdfError):
        async with running(["sh", "-c", script]):
            pass
    entries = {entry["message"]: entry for entry in log.entries()}
    shell = entries["from a shell"]
    # Names that every log record has are next to them.
    assert (shell["level"], shell["order"], shell["name_"], shell["args_"]) == ("error", 7, "Ada", [1])
    assert (entries[other]["level"], entries[other]["stream"]) == ("info", "stderr")


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_a_go_function_logs_level_fields_and_its_call(log: Log, go_command: list[str], level: str) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    async with running(go_command, level) as sidecar, sidecar.open_map(FunctionKind.MAP, NAME) as stream:
        answer = await stream.call(frame_of([b"log:7 is late"]), watermark_us=0, attempt=2, traceparent=PARENT)
        assert not answer.error
    late, *others = log.entries()
    of_call = {"lane": NAME.lane, "attempt": 2, "trace_id": "ab" * 16}
    assert (late["level"], late["message"], late["order"]) == ("warning", "7 is late", 7)
    assert {name: late[name] for name in of_call} == of_call
    said = [(entry["level"], entry["message"]) for entry in others]
    debug = [("debug", "for those who want to know")] if level == "debug" else []
    assert said == [*debug, ("info", "by package log")]


async def test_last_words_in_this_form_are_readable_in_the_message_about_the_death(log: Log) -> None:
    line = json.dumps({"millstream_log": 1, "message": "no model", "exception": "Traceback\n  ValueError: x"})
    with pytest.raises(UdfError) as caught:
        async with running(["sh", "-c", f"printf '%s\\n' {shlex.quote(line)} >&2; exit 2"]):
            pass
    assert "\n  no model\n  Traceback\n    ValueError: x" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ["", "{", "[1]", '{"millstream_log": 2, "level": "error"}', '{"a": "millstream_log"}', "{" * 50_000, "x" * 70_000],
)
def test_what_is_no_such_line_is_text(line: str) -> None:
    entry = parse_line(line)
    assert (entry.level, entry.message, entry.fields) == (logging.INFO, line, {})


@pytest.mark.parametrize("time", ["", "x", "2026-01-01T00:00:00", "9999-12-31T23:59:59Z", 3])
def test_a_time_that_is_none_is_that_of_the_reading(time: object) -> None:
    entry = parse_line(json.dumps({"millstream_log": 1, "level": 17, "message": None, "time": time}))
    record = entry.record("x", {})
    assert abs(record.created - logging.LogRecord("", 0, "", 0, "", None, None).created) < 60


async def test_spans_of_a_function_reach_the_collector_below_the_call(log: Log) -> None:
    async with open_collector() as collector:
        await call("spanned", [b"123"], OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint)
        async with asyncio.timeout(10):
            while not collector.spans:
                await collector.exports.get()
        span = collector.span("my-step")
        assert span.trace_id.hex() == "ab" * 16
        assert span.parent_span_id.hex() == "cd" * 8
        assert attributes(span.attributes)["size"] == 3
        assert collector.resource["service.name"] == "flights-clean"
        assert collector.resource["millstream.vertex"] == "clean"
