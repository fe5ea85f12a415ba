"""The JetStream sink on a real server: what of a record goes where, and that each counts once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import FencedError
from millstream.limits import NATS_POSITION_REFRESH_S
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_runner.chaos.lossy_path import LossyPath, open_lossy_path
from millstream_runner.chaos.plan import NetworkFault
from millstream_runner.cli.main import main
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.sink_targets import jetstream_spec
from tests.contract.sinks.table_lanes import again
from tests.contract.sinks.wires import JETSTREAM
from tests.support.errors import raises
from tests.support.nats_outside import OutsideNats, open_outside_nats
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "nats.md"
KEPT = {"positions": "positions"}

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[OutsideNats]:
    async with open_outside_nats(tmp_path / "nats") as nats:
        yield nats


def numbers(sequence: int, count: int = 10, *, name: str = "") -> SinkFrame:
    """`count` numbers from `sequence` * 10 on."""
    return sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + count)], sequence, name=name)


async def stored(nats: OutsideNats) -> list[int]:
    return [json.loads(value)["n"] for value in await nats.values("orders", "orders.new")]


@asynccontextmanager
async def opened(spec: FallbackSink, owner: SinkOwner | None = None) -> AsyncIterator[SinkLane]:
    async with asyncio.timeout(60), open_sink(spec, owner or sink_owner(1)) as lane:
        yield lane


# What goes where


@pytest.mark.parametrize("more", [KEPT, {}])
async def test_a_message_has_the_whole_record(nats: OutsideNats, more: dict[str, str]) -> None:
    spec = await jetstream_spec(nats, **more)
    headers = [{"h": b"\xc3\xa9", "Nats-Rollup": b"all"}, {}, {"bad name": b""}, {"a": b"\xff"}, {"b": b"1\n2"}]
    frame = sink_frame([b"\xff", b"x", b"y", b"z", b"w"], 1, keys=[[b"a", b"b"], [], [], [], []], headers=headers)
    async with opened(spec) as lane:
        (failures,) = (await lane.write([frame], Position(1))).failures
        await lane.flush()
    assert [(failure.index, failure.reason) for failure in failures] == [
        (n, "header cannot be written") for n in (2, 3, 4)
    ]
    assert await nats.values("orders", "orders.new") == [b"\xff", b"x"]
    answer = await nats.connection.api("STREAM.MSG.GET.orders", {"next_by_subj": "orders.new", "seq": 1})
    from millstream.buffers.jetstream.requests import message_headers

    found = message_headers(answer["message"])
    assert (found["h"], found["Millstream-Keys"], found["Millstream-Event-Time"]) == ("é", '["a", "b"]', "1000")
    assert "Nats-Rollup" not in found


@pytest.mark.parametrize("more", [KEPT, {}])
async def test_a_record_that_is_too_large_fails_by_itself(nats: OutsideNats, more: dict[str, str]) -> None:
    spec = await jetstream_spec(nats, **more)
    await nats.connection.api("STREAM.UPDATE.orders", await changed(nats, max_msg_size=2000))
    frame = sink_frame([b"a", b"x" * 3000, b"b"], 1)
    async with opened(spec) as lane:
        (failures,) = (await lane.write([frame], Position(1))).failures
        await lane.flush()
    assert [failure.reason for failure in failures] == ["record is too large for the stream"]
    assert await nats.values("orders", "orders.new") == [b"a", b"b"]


async def changed(nats: OutsideNats, **change: Any) -> dict[str, Any]:
    return {**(await nats.connection.api("STREAM.INFO.orders"))["config"], **change}


@pytest.mark.guarantee("I1")
async def test_more_than_a_batch_is_written_in_several(nats: OutsideNats) -> None:
    async with opened(await jetstream_spec(nats, **KEPT)) as lane:
        await lane.write([numbers(1, 2500)], Position(1))
        assert lane.durable == Position(1)
    assert await stored(nats) == [*range(10, 2510)]
    # The position takes the place of the one before.
    info = await nats.connection.api("STREAM.INFO.orders")
    assert info["state"]["messages"] == 2501


# Owners


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(nats: OutsideNats) -> None:
    spec = await jetstream_spec(nats, **KEPT)
    async with opened(spec) as old:
        await old.write([numbers(1)], Position(1))
        async with opened(spec, sink_owner(2, start=Position(1))) as new:
            with pytest.raises(FencedError):
                await old.write([numbers(2)], Position(2))
            await new.write([numbers(2)], Position(2))
            with raises(codes.OUTPUT_TAKEN_OVER, "another owner writes lane"):
                async with opened(spec, sink_owner(1)):
                    pass
    assert await stored(nats) == [*range(10, 30)]


@pytest.mark.guarantee("I1")
async def test_what_is_there_that_the_lane_does_not_know_stops_it(nats: OutsideNats) -> None:
    spec = await jetstream_spec(nats, **KEPT)
    async with opened(spec, sink_owner(1)) as lane:
        await lane.write([numbers(2, name="two")], Position(2))

    async def other(sequence: int, name: str) -> str | None:
        return f"another frame than {name}" if sequence == 2 else None

    stops = [
        (sink_owner(1, ledger_id="second"), codes.SINK_AHEAD, "another run of the pipeline wrote to"),
        (sink_owner(2, start=Position(1), held_instead=other), codes.SINK_AHEAD, "records of frame two at sequence 2"),
        (sink_owner(2, start=Position(3)), codes.SINK_BEHIND, "had confirmed sequence 3"),
    ]
    for owner, code, said in stops:
        with raises(code, said):
            async with opened(spec, owner):
                pass
    await nats.connection.api("STREAM.PURGE.orders", {"filter": "positions.>"})
    lost = sink_owner(2, start=Position(2), ledger_id="second")
    with raises(codes.TARGET_POSITION_LOST, "that records this is missing") as stopped:
        async with opened(spec, lost):
            pass
    found = re.search(r"`nats pub (\S+) '(.*)'`", str(stopped.value))
    assert found is not None
    await nats.publish(found[1], found[2].encode())
    async with opened(spec, lost) as lane:
        await lane.write([numbers(2), numbers(3)], Position(3))
    assert await stored(nats) == [*range(20, 30), *range(30, 40)]


async def test_a_position_that_is_lost_while_it_runs_stops_the_lane(nats: OutsideNats) -> None:
    async with opened(await jetstream_spec(nats, **KEPT)) as lane:
        await lane.write([numbers(1)], Position(1))
        await nats.connection.api("STREAM.PURGE.orders", {"filter": "positions.>"})
        with raises(codes.TARGET_POSITION_LOST, "up to sequence 1"):
            await lane.write([numbers(2)], Position(2))
    assert await stored(nats) == [*range(10, 20)]


async def test_a_lane_that_writes_nothing_repeats_its_position(nats: OutsideNats) -> None:
    class Later:
        def __init__(self) -> None:
            self.s = 0.0

        def now_us(self) -> int:
            return 0

        def monotonic_s(self) -> float:
            return self.s

    clock = Later()
    from dataclasses import replace

    async with opened(await jetstream_spec(nats, **KEPT), replace(sink_owner(1), clock=clock)) as lane:
        await lane.write([numbers(1)], Position(1))
        last = (await nats.connection.api("STREAM.INFO.orders"))["state"]["last_seq"]
        await lane.tick()
        assert (await nats.connection.api("STREAM.INFO.orders"))["state"]["last_seq"] == last
        clock.s = NATS_POSITION_REFRESH_S
        await lane.tick()
        assert (await nats.connection.api("STREAM.INFO.orders"))["state"]["last_seq"] == last + 1
        await lane.write([numbers(2)], Position(2))
    assert await stored(nats) == [*range(10, 30)]


# Faults


@pytest.fixture
async def path(nats: OutsideNats) -> AsyncIterator[LossyPath]:
    async with open_lossy_path(nats.server.port, JETSTREAM) as path:
        yield path


@pytest.mark.guarantee("I1")
async def test_a_batch_that_comes_late_has_no_effect(nats: OutsideNats, path: LossyPath) -> None:
    """The connection was given up, and the same owner has come back on another one."""
    async with opened(await jetstream_spec(nats, url=path.url, **KEPT)) as lane:
        path.plan(NetworkFault.LATE_COMMIT)
        with raises(codes.TARGET_AWAY):
            await lane.write([numbers(1)], Position(1))
        await again(lambda: lane.write([numbers(1)], Position(1)))
        await path.deliver_late()
        await again(lambda: lane.write([numbers(2)], Position(2)))
    assert await stored(nats) == [*range(10, 30)]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("more", [KEPT, {}])
async def test_a_server_that_is_killed_is_waited_for(nats: OutsideNats, more: dict[str, str]) -> None:
    spec = await jetstream_spec(nats, timeout="1s", **more)
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
        await nats.server.kill()
        with raises(codes.TARGET_AWAY):
            await lane.write([numbers(2)], Position(2))
        await nats.server.start()
        await again(lambda: lane.write([numbers(2)], Position(2)))
    assert await stored(nats) == [*range(10, 30)]


async def test_messages_that_come_again_are_left_out_by_their_ids(nats: OutsideNats) -> None:
    spec = await jetstream_spec(nats)
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
        await lane.write([numbers(1)], Position(1))
    assert await stored(nats) == [*range(10, 20)]
    # Another run has other records at the same places.
    async with opened(spec, sink_owner(1, ledger_id="second")) as lane:
        await lane.write([numbers(1)], Position(1))
    assert await stored(nats) == [*range(10, 20), *range(10, 20)]


# What the user has to change


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (
            {"auth": {"basic": {"user": "stranger", "password": {"env": "WRONG"}}}},
            codes.TARGET_REFUSES,
            "user stranger",
        ),
        ({"subject": "other"}, codes.TARGET_UNFIT, "no stream includes the subject other"),
        ({"positions": "elsewhere"}, codes.TARGET_UNFIT, r"does not include elsewhere\.>"),
        ({"subject": "plain.a", "positions": "plain"}, codes.TARGET_UNFIT, "does not accept atomic batches"),
        ({"subject": "short.a", "positions": "short"}, codes.TARGET_UNFIT, "deletes positions after 60 s"),
    ],
)
async def test_what_does_not_fit_is_said(
    nats: OutsideNats, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: Code, said: str
) -> None:
    monkeypatch.setenv("WRONG", "wr0ng")
    await nats.create("plain")
    await nats.create("short", allow_atomic=True, max_age=60 * 10**9, duplicate_window=10**9)
    with raises(code, said) as stopped:
        async with opened(await jetstream_spec(nats, **{**KEPT, **change})) as lane:
            await lane.write([numbers(1)], Position(1))
    assert "wr0ng" not in str(stopped.value)


async def test_exactly_once_is_refused_without_positions(
    nats: OutsideNats, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await nats.create("orders", "orders.>", "positions.>", allow_atomic=True)

    def validate(*options: str, **settings: Any) -> list[dict[str, Any]]:
        (tmp_path / "p.yaml").write_text(
            "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
            "  - name: in\n    source: {generator: {records: 1}}\n  - name: out\n    sink:\n"
            f"      jetstream: {json.dumps({**nats.settings, **settings})}\n      guarantee: exactlyOnce\n"
            "  edges:\n  - {from: in, to: out}\n"
        )
        main(["validate", *options, "-o", "json", str(tmp_path / "p.yaml")])
        return list(json.loads(capsys.readouterr().out)["problems"])

    (problem,) = await asyncio.to_thread(validate, subject="orders.new")
    assert "`positions` makes it exactly once" in problem["what"]
    assert await asyncio.to_thread(validate, "--online", subject="orders.new", positions="positions") == []
    (problem,) = await asyncio.to_thread(validate, "--online", subject="orders.new", positions="others")
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[1].sink.jetstream.positions")


async def test_the_page_shows_what_runs(nats: OutsideNats) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    ]
    (sink,) = [vertex["sink"]["jetstream"] for (vertex,) in blocks if "jetstream" in vertex.get("sink", ())]
    await jetstream_spec(nats)
    spec = FallbackSink.model_validate({"jetstream": {**sink, **nats.settings, "tls": None}})
    async with opened(spec) as lane:
        await lane.write([numbers(1)], Position(1))
    assert await stored(nats) == [*range(10, 20)]
