"""Opens sources and sinks far enough that they have imported what they need.

It imports the standard library and Millstream alone, because it also runs where nothing else is installed, as a script:
it reads a list of ends (`{"use": "sink", "settings": {...}}`) from its input and writes a list of outcomes, each with
`code` and `text` of the error of Millstream that ended the opening, `raised`, any other exception, or neither.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.clock import SystemClock
from millstream.errors import MillstreamError
from millstream.frame import build_frame
from millstream.record import SOURCE_INPUT, LaneId, Position
from millstream.spec.connectors import Place
from millstream.spec.models import FallbackSink, Source
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.opening_sources import open_source
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame

COLUMNS = [{"name": "n", "type": "int"}]
FORMS = ("jsonl", "csv", "parquet", "avro")
WAIT_S = 2.0
"""How long an end may wait for a server that does not answer."""


def local_sinks(directory: Path) -> Iterator[dict[str, Any]]:
    """Those that write what they get."""
    for form in FORMS:
        columns = {} if form == "jsonl" else {"columns": COLUMNS}
        yield {"file": {"path": str(directory / form), "format": form, **columns}}
    yield {"sql": {"url": f"sqlite:///{directory / 'rows.db'}", "table": "t", "columns": [{"name": "n"}]}}
    yield {"delta": {"path": str(directory / "delta"), "columns": COLUMNS}}
    catalog = {"sqlite": str(directory / "catalog.db"), "warehouse": str(directory / "warehouse")}
    yield {"iceberg": {"catalog": catalog, "table": "a.t", "columns": COLUMNS}}


def local_sources(directory: Path) -> Iterator[dict[str, Any]]:
    """Those that read what these have written."""
    for form in FORMS:
        yield {"file": {"paths": [str(directory / form / f"*.{form}")], "format": form}}
    yield {"delta": {"path": str(directory / "delta")}}
    yield {"iceberg": {"catalog": {"sqlite": str(directory / "catalog.db")}, "table": "a.t"}}


def end_of(use: str, settings: dict[str, Any]) -> Source | FallbackSink:
    """A `source` or a `sink` with these settings."""
    model = Source if use == "source" else FallbackSink
    return model.model_validate(settings)


def look(end: Source | FallbackSink) -> None:
    """What `validate --online` imports."""
    end.connector.online_findings(end.settings, Place((), (), Path("."), 1)).close()


async def open_end(end: Source | FallbackSink) -> None:
    """Writes a record to the sink, or reads from the source. Raises `TimeoutError` if that waits for a server."""
    async with asyncio.timeout(WAIT_S):
        if isinstance(end, Source):
            await _read(end)
        else:
            await _write(end)


async def _write(end: FallbackSink) -> None:
    at = Position(0)
    lane = LaneId("out", "in-out", 0)
    owner = SinkOwner(
        pipeline="p", lane=lane, replica=0, epoch=1, start=at, ledger_id="first", base_dir=Path("."),
        clock=SystemClock(), held_instead=_held_nothing,
    )  # fmt: skip
    async with open_sink(end, owner) as opened:
        frame = build_frame([b'{"n": 1}'], array("q", [1_000_000]), ingest_time_us=1)
        await opened.write([SinkFrame(frame, 1, 0, "out/in/0/1/", name="")], Position(1))
        await opened.flush()


async def _read(end: Source) -> None:
    lane = LaneId("in", SOURCE_INPUT, 0)
    async with open_source(end, lane, 1, b"", base_dir=Path("."), clock=SystemClock()) as opened:
        await opened.read(10, 1 << 20, 0.05)


async def _held_nothing(sequence: int, name: str) -> str | None:
    return None


def outcome(use: str, settings: dict[str, Any]) -> dict[str, str]:
    """How the opening of one end came out."""
    try:
        end = end_of(use, settings)
        look(end)
        asyncio.run(open_end(end))
    except TimeoutError:
        return {}
    except MillstreamError as error:
        return {"code": str(error.code), "text": str(error)}
    except Exception:  # noqa: BLE001  # whatever went wrong, the test shows it
        return {"raised": traceback.format_exc()}
    return {}


if __name__ == "__main__":
    json.dump([outcome(one["use"], one["settings"]) for one in json.load(sys.stdin)], sys.stdout)
