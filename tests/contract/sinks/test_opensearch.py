"""The `opensearch` sink on a real server: ids, versions, and what becomes of records that it does not take."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_writer.sink import SinkFrame
from millstream_writer.sinks.file.formats import NOT_AN_OBJECT, NOT_JSON
from millstream_writer.sinks.opening import open_sink
from millstream_writer.sinks.opensearch.documents import (
    ID_TOO_LONG,
    NO_ID,
    TOO_LARGE,
    Owned,
    convert,
)
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import opensearch_spec
from tests.contract.sinks.validating import validate_sink
from tests.support.children import together
from tests.support.errors import raises
from tests.support.opensearch_server import OpenSearchServer
from tests.unit.writer.sink_frames import sink_frame


def rows(sequence: int, *values: dict[str, Any]) -> SinkFrame:
    return sink_frame([json.dumps(value).encode() for value in values], sequence)


async def write(spec: FallbackSink, epoch: int, *frames: SinkFrame, run: str = "first") -> None:
    async with open_sink(spec, sink_owner(epoch, ledger_id=run)) as lane:
        for frame in frames:
            assert not (await lane.write([frame], Position(frame.sequence))).failures


@pytest.mark.guarantee("I1")
async def test_a_document_is_created_once_for_each_record_of_a_run(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index, compression="gzip", maxBytes=200)
    frame = sink_frame([b'{"n": 1,\n "text": "\xc3\xa9"}', b'{"n": 2}'], 7, ids=["first", "x" * 600])
    await write(spec, 1, frame)
    await write(spec, 2, frame)
    documents = opensearch.documents(index)
    assert sorted(document["n"] for document in documents.values()) == [1, 2]
    assert documents["first/first"] == {"n": 1, "text": "é"}
    assert all(len(name) <= 512 for name in documents)
    await write(spec, 1, frame, run="second")
    assert opensearch.numbers(index) == [1, 1, 2, 2]


@pytest.mark.guarantee("I1")
async def test_the_last_record_of_an_id_is_what_stays(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    when = {"field": "gone", "equals": True}
    spec = opensearch_spec(opensearch, index, mode="upsert", id="of.id", deleteWhen=when)
    frames = [
        rows(1, {"of": {"id": "a"}, "n": 1}, {"of": {"id": 7}, "n": 2}, {"of": {"id": "a"}, "n": 3}),
        rows(2, {"of": {"id": "b"}, "n": 4}, {"of": {"id": 7}, "gone": True}, {"of": {"id": "never"}, "gone": True}),
        rows(3, {"of": {"id": "b"}, "n": 5}),
    ]
    expected = {"a": 3, "b": 5}
    await write(spec, 1, *frames)
    assert {name: found["n"] for name, found in opensearch.documents(index).items()} == expected
    # Once more from the mark, as after a kill: the same in the end.
    await write(spec, 2, *frames[1:])
    assert {name: found["n"] for name, found in opensearch.documents(index).items()} == expected


@pytest.mark.guarantee("I1")
async def test_what_an_older_owner_still_writes_has_no_effect(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index, mode="upsert", id="k")
    first, second = rows(1, {"k": "a", "n": 1}), rows(2, {"k": "a", "n": 2})
    async with open_sink(spec, sink_owner(1)) as old:
        await old.write([first], Position(1))
        await write(spec, 2, first, second)
        # It stood still meanwhile, and knows nothing of the other one.
        with raises(codes.OUTPUT_TAKEN_OVER):
            await old.write([first], Position(1))
    assert [found["n"] for found in opensearch.documents(index).values()] == [2]
    with raises(codes.OUTPUT_TAKEN_OVER):
        await write(spec, 1, first)


@pytest.mark.guarantee("I1")
async def test_a_request_that_arrives_late_has_no_effect(opensearch: OpenSearchServer) -> None:
    """Its answer was lost, the same was sent again, and the record after it has been written since."""
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index, mode="upsert", id="k")
    first, second = rows(1, {"k": "a", "n": 1}), rows(2, {"k": "a", "n": 2})
    await write(spec, 1, first, second)
    puts, _ = convert(first, spec.settings, "first", Owned(1, 1))  # type: ignore[arg-type]
    body = b"".join(put.lines for put in puts)
    (item,) = opensearch.bulk(index, body)["items"]
    assert item["index"]["status"] == 409
    assert [found["n"] for found in opensearch.documents(index).values()] == [2]


@pytest.mark.guarantee("I1")
async def test_a_lane_whose_number_was_lost_stops_at_a_newer_document(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index, mode="upsert", id="k")
    for epoch in (1, 2):
        await write(spec, epoch, rows(1, {"k": "a", "n": 1}))
    opensearch.ask("DELETE", f"{index}-lanes")
    with raises(codes.SINK_AHEAD, "a document of .* has a version that lane out.in-out.0 has not reached"):
        await write(spec, 3, rows(2, {"k": "b", "n": 2}, {"k": "a", "n": 3}))
    assert {name: found["n"] for name, found in opensearch.documents(index).items()} == {"a": 1, "b": 2}


@pytest.mark.guarantee("I1")
async def test_another_run_replaces_documents(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index, mode="upsert", id="k")
    await write(spec, 5, rows(100, {"k": "a", "n": 1}))
    await write(spec, 1, rows(1, {"k": "a", "n": 2}), run="second")
    assert [found["n"] for found in opensearch.documents(index).values()] == [2]


async def test_the_document_of_a_record_without_an_id_of_its_own_is_its_key(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    keys = [[b"k"], [b"a", b"b"], [], [b"x" * 513]]
    frame = sink_frame([b'{"n": %d}' % n for n in range(4)], 1, keys=keys)
    async with open_sink(opensearch_spec(opensearch, index, mode="upsert"), sink_owner(1)) as lane:
        (failures,) = (await lane.write([frame], Position(1))).failures
    assert [(failure.index, failure.reason) for failure in failures] == [(2, NO_ID), (3, ID_TOO_LONG)]
    assert {name: found["n"] for name, found in opensearch.documents(index).items()} == {"k": 0, '["a", "b"]': 1}


@pytest.mark.guarantee("I1")
async def test_records_that_cannot_be_documents_fail_alone(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    values = [b'{"n": 1}', b"no", b"[1]", b'{"n": "no number"}', b'{"n": 5}']
    async with open_sink(opensearch_spec(opensearch, index), sink_owner(1)) as lane:
        (failures,) = (await lane.write([sink_frame(values, 1)], Position(1))).failures
    refused = "OpenSearch refuses it with mapper_parsing_exception"
    reasons = {failure.index: failure.reason for failure in failures}
    assert reasons == {1: NOT_JSON, 2: NOT_AN_OBJECT, 3: refused}
    assert "failed to parse field [n]" in failures[2].detail
    assert not any(failure.retryable for failure in failures)
    assert opensearch.numbers(index) == [1, 5]


async def test_an_index_that_is_blocked_is_waited_for(opensearch: OpenSearchServer) -> None:
    """As a server does whose disk is full."""
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index)
    await write(spec, 1, rows(1, {"n": 1}))
    for block in ("write", "read_only_allow_delete"):
        opensearch.ask("PUT", f"{index}/_settings", {f"index.blocks.{block}": True})
        async with open_sink(spec, sink_owner(1)) as lane:
            with pytest.raises(RetryLaterError, match=f"does not write to {index} now"):
                await lane.write([rows(2, {"n": 2})], Position(2))
            opensearch.ask("PUT", f"{index}/_settings", {f"index.blocks.{block}": None})
            assert not (await lane.write([rows(2, {"n": 2})], Position(2))).failures
    assert opensearch.numbers(index) == [1, 2]


async def test_an_index_that_is_not_there_and_not_created_is_said(opensearch: OpenSearchServer) -> None:
    with raises(codes.TARGET_UNFIT, r"does not create it: no such index \[absent-1\]"):
        await write(opensearch_spec(opensearch, "absent-1"), 1, rows(1, {"n": 1}))
    with raises(codes.TARGET_UNFIT, r"no such index \[absent-2\]"):
        spec = opensearch_spec(opensearch, opensearch.index(), mode="upsert", id="n", lanesIndex="absent-2")
        await write(spec, 1, rows(1, {"n": 1}))


def test_validate_online_asks_the_server(
    opensearch: OpenSearchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate_sink("opensearch", {**opensearch.settings, "index": "a"}, tmp_path, guarantee="exactlyOnce") == 0
    assert validate_sink("opensearch", {"url": "http://127.0.0.1:1", "index": "a"}, tmp_path) != 0
    assert codes.TARGET_AWAY.id in capsys.readouterr().err


# What the server of the tests cannot be made to answer


@asynccontextmanager
async def answering(status: int, body: object) -> AsyncIterator[str]:
    """The address of a server with one answer to everything."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def items(status: int, error: str) -> dict[str, Any]:
    return {"items": [{"create": {"status": status, "error": {"type": error, "reason": "why"}}}]}


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (401, "", codes.TARGET_REFUSES, "refuses the request with status 401"),
        (200, items(403, "security_exception"), codes.TARGET_REFUSES, "does not let the user write to a: security"),
        (503, "", codes.TARGET_AWAY, "answers with status 503"),
        (429, "", codes.TARGET_AWAY, "answers with status 429"),
        (302, "", codes.TARGET_UNFIT, "redirects are not followed"),
    ],
)
async def test_what_a_server_says_to_all_records(status: int, body: object, code: Code, said: str) -> None:
    async with answering(status, body) as url:
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a"}})
        with raises(code, said):
            await write(spec, 1, rows(1, {"n": 1}))


@pytest.mark.parametrize(("status", "error"), [(429, "rejected_execution_exception"), (503, "unavailable_shards")])
async def test_records_for_which_there_is_no_capacity_are_tried_again(status: int, error: str) -> None:
    async with answering(200, items(status, error)) as url:
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a"}})
        async with open_sink(spec, sink_owner(1)) as lane:
            ((failure,),) = (await lane.write([rows(1, {"n": 1})], Position(1))).failures
    assert failure.retryable
    assert failure.detail == "why"


async def test_a_request_that_is_too_large_is_said(opensearch: OpenSearchServer) -> None:
    async with answering(413, "") as url:
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a"}})
        async with open_sink(spec, sink_owner(1)) as lane:
            ((failure,),) = (await lane.write([rows(1, {"n": 1})], Position(1))).failures
            with raises(codes.TARGET_UNFIT, "lower `maxBytes`"):
                await lane.write([rows(1, {"n": 1}, {"n": 2})], Position(1))
    assert (failure.reason, failure.retryable) == (TOO_LARGE, False)


async def test_two_owners_at_once_get_numbers_of_their_own(opensearch: OpenSearchServer) -> None:
    index = opensearch.index()
    spec = opensearch_spec(opensearch, index, mode="upsert", id="k", lanesIndex=opensearch.index())
    await together(*(write(spec, 1, rows(1, {"k": n})) for n in range(4)))
    (lane,) = opensearch.documents(spec.settings.lanes_index).values()  # type: ignore[attr-defined]
    assert lane["number"] == 4
