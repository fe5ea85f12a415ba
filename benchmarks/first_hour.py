"""The first hour with Millstream and with others, measured: install, first result, first test, first breakpoint.

    python benchmarks/first_hour.py
    python benchmarks/first_hour.py fastapi bytewax --times 5
    python benchmarks/first_hour.py quix --kafka 127.0.0.1:9092

Each program gets an environment of its own in a temporary directory, and does the same job: orders get a total.
Packages are downloaded before the clock starts (that part is the network's), then installed from files. Times are
medians. CPU is that of the command and of everything it has started, and is the better figure on a machine that has
other work. `quix` reads and writes topics, so without `--kafka` only its test runs; that Kafka has to make topics when
they are asked for (`auto.create.topics.enable=true`). Numaflow and Pulsar are not here: one needs a Kubernetes cluster,
the other a server. docs/comparison.md says what the figures mean, and what each needs besides.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300
PORT = 18765

ORDERS = """\
{"order": 1, "pieces": 2, "price": 39.5}
{"order": 2, "pieces": 1, "price": 420.0}
{"order": 3, "pieces": 4, "price": 12.0}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """How one program does the job."""

    requirements: tuple[str, ...]
    files: Mapping[str, str]
    """What its user writes, by name; the tests among them are `test_…`."""
    function: str
    """The file with the user's function."""
    test_requirements: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    """The command of the first result, in the environment's `bin`; empty where it needs a server of others."""
    url: str = ""
    """Where it answers, for one that serves: the first result is the first answer."""
    needs_kafka: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def _text(text: str) -> str:
    return dedent(text).lstrip("\n")


PEERS = {
    "millstream": Peer(
        requirements=("millstream", "millstream-udf"),
        test_requirements=("pytest",),
        run=("millstream", "run", "--quiet", "pipeline.yaml"),
        function="price.py",
        files={
            "price.py": _text(
                """
                import json


                def total(value: bytes) -> bytes:
                    order = json.loads(value)
                    return json.dumps({**order, "total": order["pieces"] * order["price"]}).encode()
                """
            ),
            "pipeline.yaml": _text(
                """
                apiVersion: millstream.io/v1alpha1
                kind: Pipeline
                metadata: {name: orders}
                spec:
                  vertices:
                    - name: read
                      source: {file: {paths: [orders.jsonl], format: jsonl}}
                    - name: price
                      udf: {python: "price.py:total"}
                    - name: out
                      sink: {file: {path: out}}
                  edges:
                    - {from: read, to: price}
                    - {from: price, to: out}
                """
            ),
            "test_price.py": _text(
                """
                import json

                from millstream_udf.testing import run
                from price import total


                def test_total():
                    (message,) = run(total, [b'{"pieces": 2, "price": 39.5}']).messages
                    assert json.loads(message.value)["total"] == 79.0
                """
            ),
        },
    ),
    "fastapi": Peer(
        requirements=("fastapi[standard]",),
        test_requirements=("pytest", "httpx"),
        run=("fastapi", "run", "--port", str(PORT), "app.py"),
        url=f"http://127.0.0.1:{PORT}/orders",
        function="app.py",
        files={
            "app.py": _text(
                """
                from fastapi import FastAPI
                from pydantic import BaseModel

                app = FastAPI()


                class Order(BaseModel):
                    order: int
                    pieces: int
                    price: float


                @app.post("/orders")
                def total(order: Order):
                    return {**order.model_dump(), "total": order.pieces * order.price}
                """
            ),
            "test_app.py": _text(
                """
                from app import app
                from fastapi.testclient import TestClient


                def test_total():
                    answer = TestClient(app).post("/orders", json={"order": 1, "pieces": 2, "price": 39.5})
                    assert answer.json()["total"] == 79.0
                """
            ),
        },
    ),
    "bytewax": Peer(
        requirements=("bytewax",),
        test_requirements=("pytest",),
        run=("python", "-m", "bytewax.run", "flow"),
        function="flow.py",
        files={
            "flow.py": _text(
                """
                import json

                import bytewax.operators as op
                from bytewax.connectors.files import FileSink, FileSource
                from bytewax.dataflow import Dataflow


                def total(line):
                    order = json.loads(line)
                    return "all", json.dumps({**order, "total": order["pieces"] * order["price"]})


                def build(source, sink):
                    flow = Dataflow("orders")
                    op.output("out", op.map("total", op.input("read", flow, source), total), sink)
                    return flow


                flow = build(FileSource("orders.jsonl"), FileSink("out.jsonl"))
                """
            ),
            "test_flow.py": _text(
                """
                import json

                from bytewax.testing import TestingSink, TestingSource, run_main
                from flow import build


                def test_total():
                    out = []
                    run_main(build(TestingSource(['{"pieces": 2, "price": 39.5}']), TestingSink(out)))
                    assert json.loads(out[0][1])["total"] == 79.0
                """
            ),
        },
    ),
    "quix": Peer(
        requirements=("quixstreams",),
        test_requirements=("pytest",),
        run=("python", "app.py"),
        needs_kafka=True,
        function="price.py",
        files={
            "price.py": _text(
                """
                def total(order):
                    return {**order, "total": order["pieces"] * order["price"]}
                """
            ),
            "app.py": _text(
                """
                import os

                from quixstreams import Application
                from price import total

                app = Application(os.environ["KAFKA"], consumer_group="orders", auto_offset_reset="earliest")
                orders = app.topic("orders", value_deserializer="json")
                totals = app.topic("totals", value_serializer="json")
                app.dataframe(orders).apply(total).print().to_topic(totals)

                if __name__ == "__main__":
                    app.run(count=3)
                """
            ),
            "test_price.py": _text(
                """
                from price import total


                def test_total():
                    assert total({"pieces": 2, "price": 39.5})["total"] == 79.0
                """
            ),
        },
    ),
    "dagster": Peer(
        requirements=("dagster", "dagster-webserver"),
        test_requirements=("pytest",),
        run=("dagster", "asset", "materialize", "--select", "totals", "-f", "definitions.py"),
        function="definitions.py",
        env={"DAGSTER_DISABLE_TELEMETRY": "1"},
        files={
            "definitions.py": _text(
                """
                import json
                from pathlib import Path

                from dagster import Definitions, asset


                def total(order):
                    return {**order, "total": order["pieces"] * order["price"]}


                @asset
                def totals() -> None:
                    lines = Path("orders.jsonl").read_text().splitlines()
                    Path("out.jsonl").write_text("".join(json.dumps(total(json.loads(line))) + "\\n" for line in lines))


                defs = Definitions(assets=[totals])
                """
            ),
            "test_definitions.py": _text(
                """
                import json
                from pathlib import Path

                from dagster import materialize
                from definitions import totals


                def test_totals(tmp_path, monkeypatch):
                    monkeypatch.chdir(tmp_path)
                    Path("orders.jsonl").write_text('{"pieces": 2, "price": 39.5}\\n')
                    assert materialize([totals]).success
                    assert json.loads(Path("out.jsonl").read_text())["total"] == 79.0
                """
            ),
        },
    ),
}


_FEED = """
import os
from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": os.environ["KAFKA"], "enable.idempotence": True})
for line in open("orders.jsonl"):
    producer.produce("orders", line.strip().encode())
producer.flush()
"""


@dataclass(slots=True)
class Taken:
    """What a step took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    output: str = ""


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Bench:
    """One program in an environment and a directory of its own."""

    def __init__(self, name: str, directory: Path, kafka: str) -> None:
        self.peer = PEERS[name]
        self.name = name
        self.kafka = kafka
        self.venv = directory / "venv"
        self.wheels = directory / "wheels"
        self.work = directory / "work"
        self.work.mkdir(parents=True)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "KAFKA": self.kafka,
            "DAGSTER_HOME": str(self.work),
            **self.peer.env,
        }

    def command(self, *words: str, feed: str = "") -> Taken:
        """Run a command to its end."""
        cpu_s, began = _children_cpu_s(), time.perf_counter()
        done = subprocess.run(
            words,
            cwd=self.work,
            env=self._environment(),
            input=feed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode and not feed:
            raise SystemExit(f"{self.name}: {' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return Taken(time.perf_counter() - began, _children_cpu_s() - cpu_s, done.stdout)

    def install(self) -> Taken:
        """Into a new environment, from files that were downloaded before."""
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        pip = str(self.venv / "bin" / "pip")
        wanted = [*self.peer.requirements]
        if self.name == "millstream":
            for project in (ROOT, ROOT / "services" / "udf_sdk"):
                self.command(pip, "wheel", "-q", "--no-deps", "-w", str(self.wheels), str(project))
        found = ("--find-links", str(self.wheels))
        self.command(pip, "download", "-q", "-d", str(self.wheels), *found, *wanted, *self.peer.test_requirements)
        return self.command(pip, "install", "-q", "--no-index", *found, *wanted)

    def install_tests(self) -> None:
        pip = str(self.venv / "bin" / "pip")
        wheels = ("--no-index", "--find-links", str(self.wheels))
        self.command(pip, "install", "-q", *wheels, *self.peer.test_requirements)

    def size_mib(self) -> float:
        files = (path for path in self.venv.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(path.stat().st_size for path in files) / 2**20

    def packages(self) -> int:
        return len(list((self.venv / "lib").glob("python*/site-packages/*.dist-info"))) - 2  # pip and setuptools

    def write(self) -> None:
        shutil.rmtree(self.work)
        self.work.mkdir()
        (self.work / "orders.jsonl").write_text(ORDERS)
        for name, text in self.peer.files.items():
            (self.work / name).write_text(text)

    def first_result(self) -> Taken:
        self.write()
        if self.peer.url:
            return self._first_answer()
        self._fill_topic()
        taken = self.command(*self.peer.run)
        if not self.peer.needs_kafka:
            written = [*self.work.glob("out.jsonl"), *self.work.glob("out/*.jsonl")]
            rows = [json.loads(line) for path in written for line in path.read_text().splitlines()]
            assert sorted(row["total"] for row in rows) == [48.0, 79.0, 420.0], (self.name, rows)
        return taken

    def _fill_topic(self) -> None:
        """Three orders that the program has not read yet."""
        if self.peer.needs_kafka:
            self.command("python", "-c", _FEED)

    def _first_answer(self) -> Taken:
        cpu_s, began = _children_cpu_s(), time.perf_counter()
        with self._served():
            while not (answer := self._asked()):
                if time.perf_counter() - began > LIMIT_S:
                    raise SystemExit(f"{self.name} does not answer")
                time.sleep(0.01)
            wall_s = time.perf_counter() - began
        assert answer["total"] == 79.0
        return Taken(wall_s, _children_cpu_s() - cpu_s)

    @contextmanager
    def _served(self, *, interactive: bool = False) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.peer.run,
            cwd=self.work,
            env=self._environment(),
            text=True,
            stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def _asked(self) -> dict[str, float]:
        request = urllib.request.Request(
            self.peer.url, ORDERS.splitlines()[0].encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                found: dict[str, float] = json.load(answer)
                return found
        except (urllib.error.URLError, OSError):
            return {}

    def first_test(self) -> Taken:
        self.write()
        return self.command("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")

    def stops_at_a_breakpoint(self) -> bool:
        """Whether `breakpoint()` in the function opens a debugger where the program was started."""
        self.write()
        path = self.work / self.peer.function
        lines = path.read_text().splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if "def total(" in line)
        path.write_text("".join([*lines[: at + 1], "    breakpoint()\n", *lines[at + 1 :]]))
        if self.peer.url:
            return self._answer_stops()
        self._fill_topic()
        return "(Pdb)" in self.command(*self.peer.run, feed="continue\n" * 9).output

    def _answer_stops(self) -> bool:
        with self._served(interactive=True) as process:
            began = time.perf_counter()
            while not process.poll() and time.perf_counter() - began < LIMIT_S:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/openapi.json", timeout=2).close()
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.05)
            assert process.stdin
            assert process.stdout
            process.stdin.write("continue\n")
            process.stdin.flush()
            answered = bool(self._asked())
            process.terminate()
            return answered and "(Pdb)" in process.stdout.read()


def lines_of(files: Mapping[str, str], *, tests: bool) -> int:
    """Lines that are not empty, of what the user writes."""
    return sum(
        sum(bool(line.strip()) for line in text.splitlines())
        for name, text in files.items()
        if name.startswith("test_") == tests
    )


def measured(bench: Bench, times: int) -> dict[str, object]:
    def median(taken: list[Taken]) -> dict[str, float]:
        return {
            "wall_s": round(statistics.median(one.wall_s for one in taken), 2),
            "cpu_s": round(statistics.median(one.cpu_s for one in taken), 2),
        }

    installed = bench.install()
    found: dict[str, object] = {
        "install": {"wall_s": round(installed.wall_s, 1), "cpu_s": round(installed.cpu_s, 1)},
        "packages": bench.packages(),
        "size_mib": round(bench.size_mib()),
        "lines": lines_of(bench.peer.files, tests=False),
        "test_lines": lines_of(bench.peer.files, tests=True),
    }
    bench.install_tests()
    if not bench.peer.needs_kafka or bench.kafka:
        found["first_result"] = median([bench.first_result() for _ in range(times)])
        found["breakpoint"] = bench.stops_at_a_breakpoint()
    found["first_test"] = median([bench.first_test() for _ in range(times)])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="NAME", help=f"any of {', '.join(PEERS)}; default: all")
    parser.add_argument("--times", type=int, default=3, help="how often each step is measured")
    parser.add_argument("--kafka", default="", help="a Kafka for quix, which makes its topics there")
    arguments = parser.parse_args()
    unknown = set(arguments.peers) - set(PEERS)
    if unknown:
        parser.error(f"not known: {', '.join(sorted(unknown))}")
    print(f"load before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    results: dict[str, object] = {}
    for name in arguments.peers or PEERS:
        with tempfile.TemporaryDirectory(prefix=f"first-hour-{name}-") as directory:
            results[name] = measured(Bench(name, Path(directory), arguments.kafka), arguments.times)
        print(name, json.dumps(results[name]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
