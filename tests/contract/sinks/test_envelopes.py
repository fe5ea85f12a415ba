"""Dead letters in every kind of sink: any record fits, and its reason stays with it."""

from __future__ import annotations

import csv
import io
from array import array
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.dead_letter import MEMBERS, Envelope, headers_of, read_envelope
from millstream.frame import build_frame
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_runner.cli.envelopes import read_files
from millstream_writer.sink import SinkFrame
from tests.contract.sinks.file_target import finished_files, sink_owner
from tests.contract.sinks.http_target import HttpTarget, open_http_target
from tests.contract.sinks.sink_targets import open_target

VALUES = [b"not json", b"\xff\n\x00", b'{"n": 1, "text": "a"}']
LETTERS = [
    Envelope(
        value,
        1_000_000 * number,
        ("ada", "b") if number else (),
        {"h": b"1", "raw": b"\xff"},
        f"map/in-map/0/3/{number}",
        reason="no JSON",
        detail="stack\n  trace",
        vertex="map",
        lane="in-map.0",
        position=f"map/in-map/0/3/{number}",
        run="first",
    )
    for number, value in enumerate(VALUES)
]


def dead_letters() -> SinkFrame:
    frame = build_frame(
        VALUES,
        array("q", [letter.event_time_us for letter in LETTERS]),
        ingest_time_us=0,
        keys=[[part.encode() for part in letter.keys] for letter in LETTERS],
        headers=[
            {
                **letter.headers,
                **headers_of(letter.reason, letter.detail, "p/map/in-map.0", position=letter.position, run=letter.run),
            }
            for letter in LETTERS
        ],
        ids=[letter.position.encode() for letter in LETTERS],
    )
    return SinkFrame(frame, 7, 0, "dead/map-dead/0/7/")


async def written(spec: dict[str, object], *, envelope: bool = True) -> None:
    owner = replace(sink_owner(1), envelope=envelope)
    async with open_sink(FallbackSink.model_validate(spec), owner) as lane:
        assert not (await lane.write([dead_letters()], Position(7))).failures
        await lane.flush()
        assert lane.durable in (None, Position(7)), "positions are those of the records"


@pytest.mark.parametrize("file_format", ["jsonl", "lines"])
async def test_text_files_have_an_envelope_a_line(tmp_path: Path, file_format: str) -> None:
    await written({"file": {"path": str(tmp_path), "format": file_format}})
    (file,) = finished_files(tmp_path)
    assert [read_envelope(line) for line in file.read_bytes().splitlines()] == LETTERS


async def test_parquet_has_a_column_for_each_member(tmp_path: Path) -> None:
    await written({"file": {"path": str(tmp_path), "format": "parquet"}})
    (file,) = finished_files(tmp_path)
    table = pq.read_table(file)
    assert table.column_names == list(MEMBERS)
    rows = table.to_pylist()
    assert [row["reason"] for row in rows] == ["no JSON"] * 3
    assert [row["value"] for row in rows] == ["not json", None, '{"n": 1, "text": "a"}']
    assert [row["valueBase64"] for row in rows] == [None, "/woA", None]
    assert [row["keys"] for row in rows] == [None, '["ada", "b"]', '["ada", "b"]']
    assert {row["headers"] for row in rows} == {'{"h": "1"}'}
    assert [row["eventTime"].timestamp() for row in rows] == [0, 1, 2]


async def test_csv_has_the_members_that_are_asked_for(tmp_path: Path) -> None:
    columns = [{"name": name} for name in ("reason", "position", "value")]
    await written({"file": {"path": str(tmp_path), "format": "csv", "columns": columns}})
    (file,) = finished_files(tmp_path)
    rows = list(csv.reader(io.StringIO(file.read_text())))
    assert rows[:2] == [["reason", "position", "value"], ["no JSON", "map/in-map/0/3/0", "not json"]]
    assert [row[2] for row in rows[1:]] == ["not json", "", '{"n": 1, "text": "a"}']


@pytest.mark.parametrize("records", [1, 100])
async def test_http_is_sent_envelopes(records: int) -> None:
    target = HttpTarget()
    async with open_http_target(target):
        await written({"http": {"url": target.url, "batch": {"maxRecords": records}}})
    lines = [line for request in target.requests for line in request.body.splitlines()]
    assert [read_envelope(line) for line in lines] == LETTERS
    kind = "application/json" if records == 1 else "application/x-ndjson"
    assert {request.headers["Content-Type"] for request in target.requests} == {kind}
    assert not any(name.lower().startswith("x-millstream") for request in target.requests for name in request.headers)


async def test_they_are_read_back_from_files_of_every_format_as_the_same(tmp_path: Path) -> None:
    lines: dict[str, list[bytes]] = {}
    for file_format in ("jsonl", "lines", "csv", "parquet"):
        columns = [{"name": name, "type": "string"} for name in MEMBERS] if file_format == "csv" else []
        path = tmp_path / file_format
        await written({"file": {"path": str(path), "format": file_format, "columns": columns}})
        found = list(read_files([path]))
        assert [item.envelope for item in found] == LETTERS, file_format
        lines[file_format] = [item.line for item in found]
    assert all(found == lines["jsonl"] for found in lines.values())


async def test_the_log_always_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    await written({"log": {}}, envelope=False)
    assert [read_envelope(line) for line in capsys.readouterr().out.splitlines()] == LETTERS


async def test_a_users_sink_gets_them_as_values(tmp_path: Path) -> None:
    async with open_target("udsink", tmp_path) as target:
        owner = replace(sink_owner(1), envelope=True)
        async with open_sink(target.spec, replace(owner, client=target.udf_client)) as lane:
            result = await lane.write([dead_letters()], Position(7))
    # The function reads a member `n` that an envelope does not have: it has seen the envelope and not the value.
    (failures,) = result.failures
    assert ["KeyError: 'n'" in failure.detail for failure in failures] == [True] * 3


async def test_without_envelopes_a_text_file_has_the_bytes_and_json_lines_refuse_what_is_none(tmp_path: Path) -> None:
    for file_format, refused in (("lines", [1]), ("jsonl", [0, 1])):
        path = tmp_path / file_format
        spec = FallbackSink.model_validate({"file": {"path": str(path), "format": file_format}})
        async with open_sink(spec, sink_owner(1)) as lane:
            (failures,) = (await lane.write([dead_letters()], Position(7))).failures
            assert [failure.index for failure in failures] == refused
            await lane.flush()
    (file,) = finished_files(tmp_path / "lines")
    assert file.read_bytes() == b'not json\n{"n": 1, "text": "a"}\n'
