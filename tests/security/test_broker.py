"""The broker of a run answers those alone who have its key: what a stranger on the same machine tries is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.mesh.running import Running, called, start
from tests.security.conftest import Stranger

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: in
      source: {generator: {rpu: 20, duration: 1s}}
    - name: map
      udf: {python: "spy:environment"}
    - name: out
      sink: {file: {path: out}}
  edges:
    - {from: in, to: map, chain: false}
    - {from: map, to: out}
"""
SPY = """\
import json, os

def environment(value):
    files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return json.dumps({"environment": dict(os.environ), "files": files}).encode()
"""

CONNECT = """
async def main(url, **options):
    told = []
    async def on_error(error):
        told.append(str(error))
    try:
        client = await nats.connect(url, error_cb=on_error, allow_reconnect=False, **options)
    except Exception as error:
        print("refused:", *told, error)
    else:
        print("connected", (await client.request("$JS.API.STREAM.LIST", b"{}")).data)

asyncio.run(main(sys.argv[1]))
for pair in sys.argv[2:]:
    user, _, password = pair.partition(":")
    asyncio.run(main(sys.argv[1], user=user, password=password))
"""
"""The ordinary client."""

WITHOUT_ASKING = r"""
for said in sys.argv[2:]:
    link = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
    link.sendall(said.encode())
    told = b""
    while piece := link.recv(4096):
        told += piece
    print(told.split(b"\r\n", 1)[1].decode().replace("\r\n", " "))
"""
"""Says something at once, whether it may or not, and hears all that comes until the server hangs up."""

LISTENS = """
for port in sys.argv[1:]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/varz", timeout=10) as answer:
            print("answered", answer.read())
    except Exception as error:
        print("refused:", error)
"""

PROCESSES = """
for pid in sys.argv[1:]:
    print(pathlib.Path(f"/proc/{pid}/cmdline").read_text())
    for name in ("environ", "fd"):
        path = pathlib.Path(f"/proc/{pid}/{name}")
        try:
            print("SEEN", path.read_bytes() if name == "environ" else list(path.iterdir()))
        except PermissionError:
            pass
"""


@dataclass(frozen=True)
class Run:
    """A pipeline that runs, with what its user knows of it."""

    running: Running
    folder: Path
    port: int
    key: str


@pytest.fixture
async def run(open_folder: Path) -> AsyncIterator[Run]:
    (open_folder / "pipeline.yaml").write_text(PIPELINE)
    (open_folder / "spy.py").write_text(SPY)
    # The worst case: a directory that was there before, for everybody to look into.
    data = open_folder / "data"
    data.mkdir(mode=0o755)
    async with start(open_folder, "run", "pipeline.yaml", "--data-dir", str(data), data="data") as running:
        await running.until(lambda: running.records("out") > 0)
        port = running.json("runtime.json")["broker_port"]
        yield Run(running, open_folder, port, (data / "broker" / "key").read_text().strip())


async def test_a_stranger_is_refused_and_no_function_gets_the_key(run: Run, stranger: Stranger) -> None:
    guesses = ("millstream:guess", "millstream:", "SYS:SYS")
    told = stranger.run(CONNECT, f"nats://127.0.0.1:{run.port}", *guesses).stdout.splitlines()
    assert len(told) == 1 + len(guesses)
    assert all(line.startswith("refused: ") and "Authorization Violation" in line for line in told), told
    words = ("SUB > 1\r\n", "CONNECT {}\r\nSUB > 1\r\nPING\r\n", "PUB p-in.source.0.p 1\r\nx\r\n")
    told = stranger.run(WITHOUT_ASKING, str(run.port), *words).stdout.splitlines()
    assert len(told) == len(words)
    assert all(line.strip() == "-ERR 'Authorization Violation'" for line in told), told
    pids = run.running.pids()
    assert {"broker", "in-0", "map-0", "out-0"} <= set(pids)
    # Nothing of the broker listens but what asks for the key.
    broker = psutil.Process(pids["broker"])
    ports = {one.laddr.port for one in broker.net_connections() if one.status == psutil.CONN_LISTEN}
    assert ports == {run.port}
    assert "answered" not in stranger.run(LISTENS, str(run.port), str(run.port + 1)).stdout
    for name in ("key", "access.json", "nats.conf"):
        assert stranger.reads(run.folder / "data" / "broker" / name) is None
    everybody = [process.pid for process in psutil.Process(run.running.process.pid).children(recursive=True)]
    assert len(everybody) >= len(set(pids.values())) + 1, "the broker, the workers and a function"
    seen = stranger.run(PROCESSES, *map(str, [run.running.process.pid, *everybody]))
    assert seen.returncode == 0, seen.stderr
    assert "SEEN" not in seen.stdout
    assert "--broker-access" in seen.stdout
    assert run.key not in seen.stdout
    # Whose pipeline it is looks into it as before, and it has not noticed anything.
    place = ("--data-dir", str(run.folder / "data"))
    peeked = await called(run.folder, "peek", "in-map", "--from", "1", "--count", "1", *place)
    assert peeked.exit_code == 0, peeked.err
    run.running.interrupt()
    ended = await run.running.ended()
    assert ended.exit_code == 0, ended.err
    assert "BALANCED" in ended.out
    assert_the_key_is_in_one_file_and_no_function_has_got_it(run)


def assert_the_key_is_in_one_file_and_no_function_has_got_it(run: Run) -> None:
    lines = [line for file in (run.folder / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
    told = json.loads(json.loads(lines[0])["value"]) if "value" in json.loads(lines[0]) else json.loads(lines[0])
    assert "PATH" in told["environment"]
    assert run.key not in json.dumps(told)
    assert not any("broker" in name for name in told["files"]), told["files"]
    assert not [name for name in told["environment"] if "NATS" in name or "BROKER" in name]

    broker = run.folder / "data" / "broker"
    assert run.key not in (broker / "nats.conf").read_text()
    assert run.key not in (broker / "access.json").read_text()
    holders = [path for path in broker.rglob("*") if path.is_file() and run.key.encode() in path.read_bytes()]
    assert holders == [broker / "key"]
    for path in (broker / "nats.conf", broker / "key", broker / "access.json"):
        assert path.stat().st_mode & 0o077 == 0
    logs = run.folder / "data" / "logs"
    assert not [path for path in logs.iterdir() if run.key in path.read_text()]
