"""The `opensearch` sink on real servers: ids, versions, and what becomes of records that they do not take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from millstream import codes
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.errors import RetryLaterError
from millstream.limits import OPENSEARCH_OWNER_KNOWN_S
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.opensearch.sink.documents import (
    ID_TOO_LONG,
    NO_ID,
    TOO_LARGE,
    OwnerVersions,
    convert,
)
from millstream_connectors.shared.json_rows import NOT_AN_OBJECT, NOT_JSON
from millstream_writer.sink import SinkFrame
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import opensearch_spec
from tests.contract.sinks.validating import validate_sink
from tests.support.aws_gate import KEY_ID, REGION, SECRET, SERVICE, TOKEN, AwsGate, open_aws_gate
from tests.support.children import together
from tests.support.errors import raises
from tests.support.opensearch_server import OpenSearchServer
from tests.support.web_server import open_handler
from tests.unit.writer.sink_frames import sink_frame


@pytest.fixture(scope="module", params=["opensearch", pytest.param("elasticsearch", marks=pytest.mark.sweep)])
def server(request: pytest.FixtureRequest) -> OpenSearchServer:
    found: OpenSearchServer = request.getfixturevalue(request.param)
    return found


def rows(sequence: int, *values: dict[str, Any]) -> SinkFrame:
    return sink_frame([json.dumps(value).encode() for value in values], sequence)


async def write(spec: FallbackSink, epoch: int, *frames: SinkFrame, run: str = "first") -> None:
    async with open_sink(spec, sink_owner(epoch, ledger_id=run)) as lane:
        for frame in frames:
            assert not (await lane.write([frame], Position(frame.sequence))).failures


@pytest.mark.guarantee("I1")
async def test_a_document_is_created_once_for_each_record_of_a_run(server: OpenSearchServer) -> None:
    index = server.index()
    spec = opensearch_spec(server, index, compression="gzip", maxBytes=200)
    frame = sink_frame([b'{"n": 1,\n "text": "\xc3\xa9"}', b'{"n": 2}'], 7, ids=["first", "x" * 600])
    await write(spec, 1, frame)
    await write(spec, 2, frame)
    documents = server.documents(index)
    assert sorted(document["n"] for document in documents.values()) == [1, 2]
    assert documents["first/first"] == {"n": 1, "text": "é"}
    assert all(len(name) <= 512 for name in documents)
    await write(spec, 1, frame, run="second")
    assert server.numbers(index) == [1, 1, 2, 2]


NUMBERS = st.integers(-(2**63), 2**64).map(str) | st.decimals(-(10**40), 10**40, places=20).map("{:f}".format)
ODD = st.sampled_from(
    ["null", "true", "false", "1.10", "-0.0", "1E+2", "1e-400", "1e400", "2" * 60, "[]", "{}", "[[]]"]
)
TEXTS = st.builds(
    lambda text, escaped: json.dumps(text, ensure_ascii=escaped), st.text(st.characters(codec="utf-8")), st.booleans()
)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters=".", exclude_categories=["C", "Z"]), min_size=1)


def object_text(members: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in members.items()) + "}"


VALUES = st.recursive(
    NUMBERS | ODD | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: f"[{', '.join(values)}]")
        | st.dictionaries(NAMES, inner, max_size=3).map(object_text)
    ),
    max_leaves=6,
)
"""As they are written in JSON."""
VALUE_LISTS = st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=10, max_size=20)


@examples(max_examples=2, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(VALUE_LISTS)
def test_documents_have_the_values_of_their_records(server: OpenSearchServer, documents: list[dict[str, str]]) -> None:
    texts = [object_text({**one, "id": str(number)}) for number, one in enumerate(documents)]
    frame = sink_frame([text.encode() for text in texts], 1, ids=[str(number) for number in range(len(texts))])
    for mode, more in (("insert", {}), ("upsert", {"mode": "upsert", "id": "id"})):
        index = server.index()
        # No member needs a type.
        server.ask("PUT", index, {"mappings": {"dynamic": False}})
        asyncio.run(write(opensearch_spec(server, index, **more), 1, frame))
        found = {name.rpartition("/")[2]: repr(one) for name, one in server.documents(index).items()}
        # The representation has the types and all digits.
        expected = {str(at): repr(json.loads(text, parse_float=Decimal)) for at, text in enumerate(texts)}
        assert found == expected, mode


@pytest.mark.guarantee("I1")
async def test_the_last_record_of_an_id_is_what_stays(server: OpenSearchServer) -> None:
    index = server.index()
    when = {"field": "gone", "equals": True}
    spec = opensearch_spec(server, index, mode="upsert", id="of.id", deleteWhen=when)
    frames = [
        rows(1, {"of": {"id": "a"}, "n": 1}, {"of": {"id": 7}, "n": 2}, {"of": {"id": "a"}, "n": 3}),
        rows(2, {"of": {"id": "b"}, "n": 4}, {"of": {"id": 7}, "gone": True}, {"of": {"id": "never"}, "gone": True}),
        rows(3, {"of": {"id": "b"}, "n": 5}),
    ]
    expected = {"a": 3, "b": 5}
    await write(spec, 1, *frames)
    assert {name: found["n"] for name, found in server.documents(index).items()} == expected
    # Once more from the mark, as after a kill: the same in the end.
    await write(spec, 2, *frames[1:])
    assert {name: found["n"] for name, found in server.documents(index).items()} == expected


@pytest.mark.guarantee("I1")
async def test_what_an_older_owner_still_writes_has_no_effect(server: OpenSearchServer) -> None:
    index = server.index()
    spec = opensearch_spec(server, index, mode="upsert", id="k")
    first, second = rows(1, {"k": "a", "n": 1}), rows(2, {"k": "a", "n": 2})
    async with open_sink(spec, sink_owner(1)) as old:
        await old.write([first], Position(1))
        await write(spec, 2, first, second)
        # It stood still meanwhile, and knows nothing of the other one.
        with raises(codes.OUTPUT_TAKEN_OVER):
            await old.write([first], Position(1))
    assert [found["n"] for found in server.documents(index).values()] == [2]
    with raises(codes.OUTPUT_TAKEN_OVER):
        await write(spec, 1, first)


@pytest.mark.guarantee("I1")
async def test_a_document_that_was_written_and_deleted_may_be_sent_again(server: OpenSearchServer) -> None:
    """After a lost answer: the server has newer versions of documents that do not exist."""
    index = server.index()
    spec = opensearch_spec(server, index, mode="upsert", id="k", deleteWhen={"field": "gone", "equals": True})
    frame = rows(1, *({"k": k, "gone": gone} for k in "ab" for gone in (False, True)))
    async with open_sink(spec, sink_owner(1)) as lane:
        for _ in range(2):
            assert not (await lane.write([frame], Position(1))).failures
    assert server.documents(index) == {}


class LateClock(SystemClock):
    """That of an owner that stands still."""

    late_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.late_s


@pytest.mark.guarantee("I1")
async def test_an_owner_that_stood_still_does_not_bring_back_what_a_later_one_deleted(
    server: OpenSearchServer,
) -> None:
    index = server.index()
    server.ask("PUT", index, {"settings": {"index.gc_deletes": "1ms"}})
    spec = opensearch_spec(server, index, mode="upsert", id="k", deleteWhen={"field": "gone", "equals": True})
    first, gone = rows(1, {"k": "a", "n": 1}), rows(2, {"k": "a", "gone": True})
    clock = LateClock()
    async with open_sink(spec, replace(sink_owner(1), clock=clock)) as old:
        await old.write([first], Position(1))
        clock.late_s = OPENSEARCH_OWNER_KNOWN_S
        # It still has the lane.
        await old.write([first], Position(1))
        await write(spec, 2, first, gone)
        clock.late_s *= 2
        with raises(codes.OUTPUT_TAKEN_OVER):
            await old.write([first], Position(1))
    assert server.documents(index) == {}


@pytest.mark.guarantee("I1")
async def test_a_request_that_arrives_late_has_no_effect(server: OpenSearchServer) -> None:
    """Its answer was lost, the same was sent again, and the record after it has been written since."""
    index = server.index()
    spec = opensearch_spec(server, index, mode="upsert", id="k")
    first, second = rows(1, {"k": "a", "n": 1}), rows(2, {"k": "a", "n": 2})
    await write(spec, 1, first, second)
    puts, _ = convert(first, spec.settings, "first", OwnerVersions(1, 1))  # type: ignore[arg-type]
    body = b"".join(put.lines for put in puts)
    (item,) = server.bulk(index, body)["items"]
    assert item["index"]["status"] == 409
    assert [found["n"] for found in server.documents(index).values()] == [2]


@pytest.mark.guarantee("I1")
async def test_a_lane_whose_number_was_lost_stops_at_a_newer_document(server: OpenSearchServer) -> None:
    index = server.index()
    spec = opensearch_spec(server, index, mode="upsert", id="k")
    for epoch in (1, 2):
        await write(spec, epoch, rows(1, {"k": "a", "n": 1}))
    server.ask("DELETE", f"{index}-lanes")
    with raises(codes.SINK_AHEAD, "a document of .* has a version that lane out.in-out.0 has not reached"):
        await write(spec, 3, rows(2, {"k": "b", "n": 2}, {"k": "a", "n": 3}))
    assert {name: found["n"] for name, found in server.documents(index).items()} == {"a": 1, "b": 2}


@pytest.mark.guarantee("I1")
async def test_another_run_replaces_documents(server: OpenSearchServer) -> None:
    index = server.index()
    spec = opensearch_spec(server, index, mode="upsert", id="k")
    await write(spec, 5, rows(100, {"k": "a", "n": 1}))
    await write(spec, 1, rows(1, {"k": "a", "n": 2}), run="second")
    assert [found["n"] for found in server.documents(index).values()] == [2]


async def test_the_document_of_a_record_without_an_id_of_its_own_is_its_key(server: OpenSearchServer) -> None:
    index = server.index()
    keys = [[b"k"], [b"a", b"b"], [], [b"x" * 513]]
    frame = sink_frame([b'{"n": %d}' % n for n in range(4)], 1, keys=keys)
    async with open_sink(opensearch_spec(server, index, mode="upsert"), sink_owner(1)) as lane:
        (failures,) = (await lane.write([frame], Position(1))).failures
    assert [(failure.index, failure.reason) for failure in failures] == [(2, NO_ID), (3, ID_TOO_LONG)]
    assert {name: found["n"] for name, found in server.documents(index).items()} == {"k": 0, '["a", "b"]': 1}


@pytest.mark.guarantee("I1")
async def test_records_that_cannot_be_documents_fail_alone(server: OpenSearchServer) -> None:
    index = server.index()
    values = [b'{"n": 1}', b"no", b"[1]", b'{"n": "no number"}', b'{"n": 5}']
    async with open_sink(opensearch_spec(server, index), sink_owner(1)) as lane:
        (failures,) = (await lane.write([sink_frame(values, 1)], Position(1))).failures
    refused = "OpenSearch refuses it with mapper_parsing_exception"
    reasons = {failure.index: failure.reason for failure in failures}
    assert reasons == {1: NOT_JSON, 2: NOT_AN_OBJECT, 3: refused}
    assert "failed to parse field [n]" in failures[2].detail
    assert not any(failure.retryable for failure in failures)
    assert server.numbers(index) == [1, 5]


async def test_an_index_that_is_blocked_is_waited_for(server: OpenSearchServer) -> None:
    """As a server does whose disk is full."""
    index = server.index()
    spec = opensearch_spec(server, index)
    await write(spec, 1, rows(1, {"n": 1}))
    for block in ("write", "read_only_allow_delete"):
        server.ask("PUT", f"{index}/_settings", {f"index.blocks.{block}": True})
        async with open_sink(spec, sink_owner(1)) as lane:
            with pytest.raises(RetryLaterError, match=f"does not write to {index} now"):
                await lane.write([rows(2, {"n": 2})], Position(2))
            server.ask("PUT", f"{index}/_settings", {f"index.blocks.{block}": None})
            assert not (await lane.write([rows(2, {"n": 2})], Position(2))).failures
    assert server.numbers(index) == [1, 2]


async def test_an_index_that_is_not_there_and_not_created_is_said(server: OpenSearchServer) -> None:
    with raises(codes.TARGET_UNFIT, r"does not create it: no such index \[absent-1\]"):
        await write(opensearch_spec(server, "absent-1"), 1, rows(1, {"n": 1}))
    with raises(codes.TARGET_UNFIT, r"no such index \[absent-2\]"):
        spec = opensearch_spec(server, server.index(), mode="upsert", id="n", lanesIndex="absent-2")
        await write(spec, 1, rows(1, {"n": 1}))


def test_validate_online_asks_the_server(
    server: OpenSearchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate_sink("opensearch", {**server.settings, "index": "a"}, tmp_path, guarantee="exactlyOnce") == 0
    assert validate_sink("opensearch", {"url": "http://127.0.0.1:1", "index": "a"}, tmp_path) != 0
    assert codes.TARGET_AWAY.id in capsys.readouterr().err


# What the server of the tests cannot be made to answer


@asynccontextmanager
async def answering(status: int, body: object) -> AsyncIterator[str]:
    """The address of a server with one answer to everything."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body) if isinstance(body, bytes) else web.json_response(body, status=status)

    async with open_handler(answer) as url:
        yield url


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
        (200, b"\x1f\x8b no text", codes.TARGET_UNFIT, "answers unlike OpenSearch, without `items`"),
        (200, "Welcome", codes.TARGET_UNFIT, "answers unlike OpenSearch, without `items`"),
    ],
)
async def test_what_a_server_says_to_all_records(status: int, body: object, code: Code, said: str) -> None:
    async with answering(status, body) as url:
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a"}})
        with raises(code, said):
            await write(spec, 1, rows(1, {"n": 1}))


async def test_a_newer_version_that_cannot_be_read_now_is_waited_for() -> None:
    """A conflict is not taken for a success before it is known who has written the newer version."""
    error = {"type": "no_shard_available_action_exception", "reason": "No shard available"}
    conflict = {"index": {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "newer"}}}
    owner = {"_source": {"run": "first", "epoch": 1, "number": 1}, "_seq_no": 1, "_primary_term": 1}
    async with answering(200, {"items": [conflict], "docs": [{"error": error}], **owner}) as url:
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a", "mode": "upsert", "id": "k"}})
        with pytest.raises(RetryLaterError, match="does not show a document of a now: No shard available"):
            await write(spec, 1, rows(1, {"k": "a", "n": 1}))


@pytest.mark.parametrize(("status", "error"), [(429, "rejected_execution_exception"), (503, "unavailable_shards")])
async def test_records_for_which_there_is_no_capacity_are_tried_again(status: int, error: str) -> None:
    async with answering(200, items(status, error)) as url:
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a"}})
        async with open_sink(spec, sink_owner(1)) as lane:
            ((failure,),) = (await lane.write([rows(1, {"n": 1})], Position(1))).failures
    assert failure.retryable
    assert failure.detail == "why"


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_a_request_that_is_too_large_is_sent_in_parts(compression: str, caplog: pytest.LogCaptureFixture) -> None:
    requests: list[tuple[int, list[int]]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        numbers = [found["n"] for found in map(json.loads, body.splitlines()) if "n" in found]
        requests.append((413 if len(body) > 1000 else 200, numbers))
        if len(body) > 1000:
            return web.Response(status=413)
        return web.json_response({"items": [{"create": {"status": 400 if n == 30 else 201}} for n in numbers]})

    # Each takes about 60 bytes in a request.
    frames = [rows(number, {"n": number}) for number in range(1, 41)]
    async with open_handler(answer) as url:
        given = {"url": url, "index": "a", "compression": compression, "maxBytes": 1800}
        spec = FallbackSink.model_validate({"opensearch": given})
        async with open_sink(spec, sink_owner(1)) as lane:
            found = (await lane.write(frames, Position(40))).failures
            assert [number for number, failures in enumerate(found, 1) if failures] == [30]
            refused = [numbers for status, numbers in requests if status == 413]
            taken = [numbers for status, numbers in requests if status == 200]
            assert [number for numbers in taken for number in numbers] == list(range(1, 41))
            assert len(refused) <= 2
            assert "accepts no request of" in caplog.text
            # From now on, requests are smaller. Only a record that is too large alone fails.
            requests.clear()
            large = rows(43, {"n": 43, "text": "x" * 1000})
            more = [rows(41, {"n": 41}), rows(42, {"n": 42}), large, rows(44, {"n": 44})]
            found = (await lane.write(more, Position(44))).failures
            assert [[(one.reason, one.retryable) for one in failures] for failures in found] == [
                *([], []),
                [(TOO_LARGE, False)],
                [],
            ]
            assert requests == [(200, [41, 42]), (413, [43]), (200, [44])]


async def test_a_server_that_takes_no_record_at_all_refuses_each() -> None:
    async with answering(413, "") as url:
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a"}})
        async with open_sink(spec, sink_owner(1)) as lane:
            (failures,) = (await lane.write([rows(1, {"n": 1}, {"n": 2}, {"n": 3})], Position(1))).failures
    assert [(one.index, one.reason, one.retryable) for one in failures] == [(n, TOO_LARGE, False) for n in range(3)]


async def test_two_owners_at_once_get_numbers_of_their_own(server: OpenSearchServer) -> None:
    index = server.index()
    spec = opensearch_spec(server, index, mode="upsert", id="k", lanesIndex=server.index())
    await together(*(write(spec, 1, rows(1, {"k": n})) for n in range(4)))
    (lane,) = server.documents(spec.settings.lanes_index).values()  # type: ignore[attr-defined]
    assert lane["number"] == 4


@pytest.mark.guarantee("I1")
async def test_frames_of_one_write_share_requests_and_each_keeps_its_own_failures() -> None:
    requests: list[list[int]] = []

    async def answer(request: web.Request) -> web.Response:
        numbers = [found["n"] for found in map(json.loads, (await request.read()).splitlines()) if "n" in found]
        requests.append(numbers)
        if numbers[0] == 6 and len(requests) < 4:
            return web.Response(status=503)
        refused = {"status": 400, "error": {"type": "mapper_parsing_exception", "reason": "no"}}
        busy = {"status": 429, "error": {"type": "rejected_execution_exception", "reason": "busy"}}
        known = {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "exists"}}
        others = {2: refused, 4: busy, 5: known}
        return web.json_response({"items": [{"create": others.get(n, {"status": 201})} for n in numbers]})

    async with open_handler(answer) as url:
        frames = [
            rows(1, {"n": 1}),
            sink_frame([b"no", b'{"n": 2}', b'{"n": 3}'], 2),
            rows(3, {"n": 4}, {"n": 5}),
        ]
        spec = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a"}})
        async with open_sink(spec, sink_owner(1)) as lane:
            found = (await lane.write(frames, Position(3))).failures
        assert requests == [[1, 2, 3, 4, 5]]
        assert [[(one.index, one.retryable) for one in of_frame] for of_frame in found] == [
            [],
            [(0, False), (1, False)],
            [(0, True)],
        ]
        # No answer to a part of the records: all of them may be sent again.
        small = FallbackSink.model_validate({"opensearch": {"url": url, "index": "a", "maxBytes": 60}})
        more = [rows(4, {"n": 5}), rows(5, {"n": 6})]
        async with open_sink(small, sink_owner(1)) as lane:
            with raises(codes.TARGET_AWAY, "503"):
                await lane.write(more, Position(5))
            assert not (await lane.write(more, Position(5))).failures
        assert requests[1:] == [[5], [6], [5], [6]]


def signed(gate: AwsGate, **credentials: object) -> dict[str, Any]:
    """The settings of a sink that reaches its server through the gate."""
    return {"url": gate.url, "auth": {"aws": {"region": REGION, "service": SERVICE, **credentials}}}


async def test_requests_are_signed_as_services_of_aws_demand_it(
    opensearch: OpenSearchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opensearch.index()
    monkeypatch.setenv("SEARCH_SECRET", SECRET)
    monkeypatch.setenv("SEARCH_TOKEN", TOKEN)
    keys = {"accessKey": KEY_ID, "secretKey": {"env": "SEARCH_SECRET"}, "sessionToken": {"env": "SEARCH_TOKEN"}}
    frame = rows(1, {"k": "a", "n": 1}, {"k": "b c", "n": 2, "text": "é" * 2_000_000}, {"k": "a", "gone": True})
    async with open_aws_gate(opensearch.settings["url"], TOKEN) as gate:
        for compression in ("none", "gzip"):
            more = {"mode": "upsert", "id": "k", "deleteWhen": {"field": "gone"}, "compression": compression}
            spec = opensearch_spec(opensearch, index, **more, **signed(gate, **keys))
            await write(spec, 1, frame)
        settings = {"index": index, **signed(gate, **keys)}
        assert await asyncio.to_thread(validate_sink, "opensearch", settings, tmp_path) == 0
        assert gate.refused == []
        assert any("*" in target for target in gate.passed)
    assert opensearch.numbers(index) == [2]


async def test_credentials_of_aws_are_looked_for_in_the_environment(
    opensearch: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opensearch.index()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    async with open_aws_gate(opensearch.settings["url"]) as gate:
        spec = opensearch_spec(opensearch, index, **signed(gate))
        await write(spec, 1, rows(1, {"n": 1}))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another one")
        with raises(codes.TARGET_REFUSES, "status 403: check `auth`"):
            await write(spec, 2, rows(2, {"n": 2}))
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with raises(codes.TARGET_REFUSES, "no credentials of AWS"):
            await write(spec, 2, rows(2, {"n": 2}))
    assert opensearch.numbers(index) == [1]


async def test_what_signing_needs_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("millstream.spec.needs.find_spec", lambda name: None)
    settings = {"url": "http://127.0.0.1:1", "index": "a", "auth": {"aws": {"region": REGION, "service": SERVICE}}}
    assert await asyncio.to_thread(validate_sink, "opensearch", settings, tmp_path) == codes.EXTRA_NEEDED.exit_code
    assert "millstream[aws]" in capsys.readouterr().err
    with raises(codes.EXTRA_NEEDED, r"millstream\[aws\]"):
        await write(FallbackSink.model_validate({"opensearch": settings}), 1, rows(1, {"n": 1}))
