"""The users that `millstream broker config` makes, on a real server: each does its work, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from millstream.buffers.jetstream.access_file import load_access
from millstream.clock import SystemClock
from millstream.errors import InfrastructureError
from millstream.ledger.protocol import DurabilityLevel
from millstream.nats.access import BrokerAccess
from millstream.plan import resolved
from millstream.spec.loading import load
from millstream_runner.cli.main import main
from millstream_runner.local.tapping import open_tap
from millstream_runner.local.view import open_view
from millstream_worker.assembly import open_vertex
from millstream_worker.environment import VertexConfig
from tests.nats_process import open_nats_process
from tests.support.answers import taken
from tests.support.children import started

WAIT_S = 180.0
RECORDS = 200

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: {name}}}
spec:
  vertices:
    - name: in
      source: {{file: {{paths: [in.jsonl]}}}}
    - name: map
      partitions: 2
      udf: {{builtin: {{name: cat}}}}
    - name: other
      sink: {{log: {{}}}}
    - name: out
      sink: {{file: {{path: out}}}}
  edges:
    - {{from: in, to: map}}
    - {{from: in, to: other}}
    - {{from: map, to: out}}
"""
WINDOWS = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: w}
spec:
  vertices:
    - name: in
      source: {file: {paths: [in.jsonl]}}
    - name: sum
      udf: {python: "f.py:f", groupBy: {window: {fixed: {length: 60s}}, keepInput: KEEPS}}
    - name: out
      sink: {file: {path: sums}}
  edges:
    - {from: in, to: sum}
    - {from: sum, to: out}
"""
SERVER = """
listen: "127.0.0.1:-1"
max_payload: 8388608
jetstream {{ store_dir: "{store}", sync_interval: always }}
include "accounts.conf"
"""

# What each vertex of pipeline p may do, said a second time, and by hand: the streams it looks into, those it reads from
# with the edge, and the OT stores of itself and its neighbours.
LOOKS_INTO = {"in": {"in"}, "map": {"map", "in"}, "other": {"other", "in"}, "out": {"out", "map"}}
READS = {"in": {}, "map": {"in": "in-map"}, "other": {"in": "in-other"}, "out": {"map": "map-out"}}
HEARS = {"in": {"in", "map", "other"}, "map": {"map", "in", "out"}, "other": {"other", "in"}, "out": {"out", "map"}}
VERTICES = tuple(HEARS)
EDGES = {"in-map": "in", "in-other": "in", "map-out": "map"}


@dataclass(frozen=True)
class Broker:
    """A server with the users of the pipelines p and q."""

    url: str
    folder: Path

    def access(self, user: str, pipeline: str = "p") -> BrokerAccess:
        return load_access(self.folder / pipeline / f"{user}.yaml", self.url)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    for name in ("p", "q"):
        (tmp_path / f"{name}.yaml").write_text(PIPELINE.format(name=name))
    lines = [json.dumps({"number": number}) for number in range(RECORDS)]
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    folder = tmp_path / "server"
    assert main(["broker", "config", str(tmp_path / "p.yaml"), str(tmp_path / "q.yaml"), "--to", str(folder)]) == 0
    async with open_nats_process(folder, SERVER) as server:
        opened = Broker(server.url, folder)
        for name in ("p", "q"):
            access = ("--broker", server.url, "--broker-access", str(folder / name / "_pipeline.yaml"))
            command = ["broker", "prepare", str(tmp_path / f"{name}.yaml"), *access]
            assert await asyncio.to_thread(main, command) == 0
        yield opened


async def run_vertex(broker: Broker, file: Path, vertex: str, user: str | None = None) -> None:
    loaded = load(file)
    config = VertexConfig(
        resolved=resolved.load(resolved.dump(loaded.plan, loaded.base_dir)),
        vertex=vertex,
        replica=0,
        broker=broker.access(user or vertex),
        durability=DurabilityLevel.FSYNC,
    )
    async with open_vertex(config, SystemClock()) as process:
        await process.run()


async def test_a_pipeline_runs_with_a_user_for_each_vertex(broker: Broker, tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        for vertex in VERTICES:
            group.create_task(run_vertex(broker, tmp_path / "p.yaml", vertex))
    found = [line for file in (tmp_path / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(found) == sorted(set(found))
    assert len(found) == RECORDS


async def test_a_worker_runs_vertices_whose_users_differ(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    loaded = load(tmp_path / "p.yaml")
    file.write_text(resolved.dump(loaded.plan, loaded.base_dir))
    starting = started(
        sys.executable,
        "-m",
        "millstream_worker",
        "--pipeline",
        str(file),
        "--broker",
        broker.url,
        "--broker-access",
        str(broker.folder / "p"),
        "--replicas",
        *(f"{vertex}-0" for vertex in VERTICES),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S), starting as process:
        _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    found = [line for file in (tmp_path / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(found) == sorted(set(found))
    assert len(found) == RECORDS


async def test_a_vertex_with_the_user_of_another_is_told_what_it_lacks(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises((BaseExceptionGroup, InfrastructureError)) as raised:
        async with asyncio.timeout(WAIT_S):
            await run_vertex(broker, tmp_path / "p.yaml", "map", user="out")
    text = repr(raised.value)
    assert "does not let user p.out publish to p-map.in-map.0.p: grant it publish rights" in text


@pytest.mark.parametrize("vertex", VERTICES)
async def test_a_vertex_may_do_what_it_needs_and_nothing_else(broker: Broker, vertex: str) -> None:
    tried = publishing(vertex)
    assert await refused_publishing(broker.access(vertex), tried) == denied(tried)
    tried = listening(vertex)
    assert await refused_listening(broker.access(vertex), tried) == denied(tried)


async def test_who_looks_sees_everything_and_changes_nothing(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = broker.folder / "p" / "_view.yaml"
    place = ("--broker", broker.url, "--broker-access", str(view), "--file", str(tmp_path / "p.yaml"))

    async def looks(*command: str) -> str:
        capsys.readouterr()
        assert await asyncio.to_thread(main, [*command, *place, "-o", "json"]) == 0
        return capsys.readouterr().out

    plan = load(tmp_path / "p.yaml").plan
    numbers: list[int] = []
    async with (
        asyncio.timeout(WAIT_S),
        open_view(plan, broker.access("_view")) as viewed,
        open_tap(plan, viewed, "in-other") as tap,
        asyncio.TaskGroup() as group,
    ):
        for vertex in VERTICES:
            group.create_task(run_vertex(broker, tmp_path / "p.yaml", vertex))
        while len(numbers) < RECORDS:
            numbers += [json.loads(passed.record.value)["number"] for passed in await tap.look(WAIT_S)]
    assert numbers == list(range(RECORDS))
    vertices = json.loads(await looks("status"))["vertices"]
    assert {one["vertex"]: one["records"] for one in vertices} == dict.fromkeys(VERTICES, RECORDS)
    await looks("peek", "in-other", "--from", "1")

    reads = {"STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"}
    may: dict[str, bool] = {}
    for vertex in VERTICES:
        for name in (f"p-{vertex}", f"KV_p-{vertex}-OT"):
            may |= {f"$JS.API.{what}.{name}": True for what in reads}
            may |= {f"$JS.API.STREAM.{what}.{name}": False for what in ("CREATE", "UPDATE", "DELETE", "PURGE")}
            may |= {f"$JS.API.CONSUMER.{what}.{name}.x": False for what in ("CREATE", "DELETE")}
        may |= {f"p-{vertex}.a.0.d.b.0": False, f"p-{vertex}.source.0.p": False}
        may[f"$KV.p-{vertex}-OT.in/source.0"] = False
    assert await refused_publishing(broker.access("_view"), list(may)) == denied(may)


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_reduce_that_keeps_its_input_reads_and_trims_its_milestones(tmp_path: Path, keeps: bool) -> None:
    (tmp_path / "w.yaml").write_text(WINDOWS.replace("KEEPS", str(keeps).lower()))
    (tmp_path / "f.py").write_text("def f(keys, values): return b''\n")
    folder = tmp_path / "server"
    assert main(["broker", "config", str(tmp_path / "w.yaml"), "--to", str(folder)]) == 0
    tried = {
        "$JS.API.CONSUMER.CREATE.w-sum.x.w-sum.*.*.d.window.0": keeps,
        "$JS.API.CONSUMER.MSG.NEXT.w-sum.x": keeps,
        "$JS.API.CONSUMER.DELETE.w-sum.x": keeps,
        "$JS.API.STREAM.PURGE.w-sum": keeps,
        "$JS.API.CONSUMER.CREATE.w-sum.x.w-sum.*.*.d.sum-out.0": False,
    }
    async with open_nats_process(folder, SERVER) as server:
        access = load_access(folder / "w" / "sum.yaml", server.url)
        assert await refused_publishing(access, tried) == denied(tried)


async def test_pipelines_see_nothing_of_each_other(broker: Broker) -> None:
    async with connected(broker.access("_pipeline", "q")) as other, connected(broker.access("_pipeline")) as own:
        heard: list[str] = []

        async def hear(message: object) -> None:
            heard.append(message.subject)  # type: ignore[attr-defined]

        await other.subscribe(">", cb=hear)
        await taken(other)
        await own.publish("p-in.source.0.p", b"x")
        await taken(own)
        streams = json.loads((await other.request("$JS.API.STREAM.NAMES", b"")).data)["streams"]
        assert streams
        assert all(name.startswith(("q-", "KV_q-")) for name in streams)
        assert json.loads((await other.request("$JS.API.STREAM.INFO.p-in", b"")).data)["error"]["code"] == 404
        assert not [subject for subject in heard if subject.startswith("p-")]


async def test_nobody_is_a_user_without_credentials_or_of_the_system_account(broker: Broker) -> None:
    for options in ({}, {"user": "p.in", "password": "guess"}, {"user": "SYS", "password": "SYS"}):
        with pytest.raises(nats.errors.NoServersError):
            await nats.connect(broker.url, max_reconnect_attempts=1, reconnect_time_wait=0, error_cb=silent, **options)


def test_secrets_are_in_files_of_their_users_alone_and_stay_when_made_again(broker: Broker, tmp_path: Path) -> None:
    folder = broker.folder
    passwords = {path: path.read_text() for path in folder.rglob("*.password")}
    assert len(passwords) == 2 * (2 + len(VERTICES))
    assert len(set(passwords.values())) == len(passwords)
    for path in [*passwords, folder / "passwords.conf", *folder.rglob("*.yaml")]:
        assert path.stat().st_mode & 0o077 == 0
    accounts = (folder / "accounts.conf").read_text()
    assert not [text for text in passwords.values() if text.strip() in accounts]
    assert main(["broker", "config", str(tmp_path / "p.yaml"), "--to", str(folder)]) == 0
    assert {path: path.read_text() for path in folder.rglob("*.password")} == passwords


def publishing(vertex: str) -> Mapping[str, bool]:
    """Subjects to publish to, and whether this vertex may."""
    may: dict[str, bool] = {"anything": False, "_INBOX.x": False, "$SYS.REQ.SERVER.PING.CONNZ": False}
    may |= {f"$JS.API.{what}": False for what in ("INFO", "STREAM.NAMES", "STREAM.LIST", "ACCOUNT.PURGE.p")}
    for name in VERTICES:
        for stream, reads, own in ((f"p-{name}", name in LOOKS_INTO[vertex], name == vertex),):
            may[f"{stream}.source.0.p"] = own
            may[f"{stream}.a.0.d.b.0"] = own
            may |= {f"$JS.API.{what}.{stream}": reads for what in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")}
            may[f"$JS.API.STREAM.PURGE.{stream}"] = name in READS[vertex]
            for what in ("CONSUMER.MSG.NEXT", "CONSUMER.DELETE"):
                may[f"$JS.API.{what}.{stream}.x"] = name in READS[vertex]
        may[f"$KV.p-{name}-OT.in/source.0"] = name == vertex
        bucket = f"KV_p-{name}-OT"
        may |= {
            f"$JS.API.{what}.{bucket}": name in HEARS[vertex]
            for what in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")
        }
        may[f"$JS.API.STREAM.PURGE.{bucket}"] = False
        for stream in (f"p-{name}", bucket):
            for what in ("CREATE", "UPDATE", "DELETE", "MSG.DELETE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN"):
                may[f"$JS.API.STREAM.{what}.{stream}"] = False
            # Frames that were stored for a commit that was refused.
            may[f"$JS.API.STREAM.MSG.DELETE.p-{name}"] = name == vertex
            for what in ("CREATE", "INFO", "DURABLE.CREATE"):
                may[f"$JS.API.CONSUMER.{what}.{stream}.x"] = False
            may |= {f"$JS.API.CONSUMER.{what}.{stream}": False for what in ("CREATE", "NAMES", "LIST")}
            may[f"$JS.API.CONSUMER.CREATE.{stream}.x.{stream}.>"] = False
    for edge, writer in EDGES.items():
        filtered = f"$JS.API.CONSUMER.CREATE.p-{writer}.x.p-{writer}.*.*.d.{edge}.0"
        may[filtered] = READS[vertex].get(writer) == edge
    return may


def listening(vertex: str) -> Mapping[str, bool]:
    """Subjects to listen to, and whether this vertex may."""
    may = {">": False, "_INBOX.>": False, "_INBOX.p.>": False, "$JS.>": False, "$SYS.>": False, "$KV.>": False}
    for name in VERTICES:
        may[f"p-{name}.>"] = False
        may[f"_INBOX.p.{name}.x"] = name == vertex
        may[f"$KV.p-{name}-OT.>"] = name in HEARS[vertex]
    return may


def denied(subjects: Mapping[str, bool]) -> set[str]:
    """As the client library tells them: in small letters."""
    return {subject.lower() for subject, may in subjects.items() if not may}


class connected:  # a block, as a function would make it
    """A plain client with that access."""

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access
        self.violations: list[str] = []

    async def __aenter__(self) -> Client:
        async def hear(error: Exception) -> None:
            self.violations.append(str(error))

        self._client = await nats.connect(self._access.url, error_cb=hear, **self._access.client_options())
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


async def refused_publishing(access: BrokerAccess, subjects: Iterable[str]) -> set[str]:
    opened = connected(access)
    async with opened as client:
        for subject in subjects:
            await client.publish(subject, b"{}", reply=f"{access.inbox}.x")
            await client.flush()
        await taken(client)
    return {text.split('"')[1] for text in opened.violations if "publish" in text}


async def refused_listening(access: BrokerAccess, subjects: Mapping[str, bool]) -> set[str]:
    opened = connected(access)
    async with opened as client:
        for subject in subjects:
            await client.subscribe(subject)
            await client.flush()
        await taken(client)
    return {text.split('"')[1] for text in opened.violations if "subscription" in text}


async def silent(_: Exception) -> None:
    """Says nothing of what the test expects."""
