"""Opens every kind of source and sink, each in a process of its own that has only the packages of its extra, and
reports what was missing there, and which packages were first imported on the event loop:
`python -m tests.unit.opened_alone DIRECTORY PORT [KIND...]`. Of named kinds, it opens those on this machine.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from millstream.clock import SystemClock
from millstream.codes import EXTRA_NEEDED
from millstream.errors import MillstreamError
from millstream.record import SOURCE_INPUT, LaneId, Position
from millstream.spec.connectors import Place
from millstream.spec.models import FallbackSink, Source
from millstream.spec.needs import needed_by
from millstream_reader.sources.opening import open_source
from millstream_writer.sinks.opening import open_sink
from tests.contract.sinks.file_target import sink_owner
from tests.contract.test_wrong_addresses import LOCAL, sinks, sources
from tests.unit.writer.sink_frames import sink_frame

COLUMNS = [{"name": "n", "type": "int"}]
FORMS = ("jsonl", "csv", "parquet", "avro")
TOGETHER = 4
"""Processes at a time. Most of them wait for a server that does not answer."""
WAIT_S = 2.0
"""How long each waits."""


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


async def use_sink(settings: dict[str, Any]) -> None:
    async with open_sink(FallbackSink.model_validate(settings), sink_owner(1)) as lane:
        await lane.write([sink_frame([b'{"n": 1}'], 1)], Position(1))
        await lane.flush()


async def use_source(settings: dict[str, Any]) -> None:
    source, lane = Source.model_validate(settings), LaneId("in", SOURCE_INPUT, 0)
    async with open_source(source, lane, 1, b"", base_dir=Path("."), clock=SystemClock()) as opened:
        await opened.read(10, 1 << 20, 0.05)


def look(end: Source | FallbackSink) -> None:
    """What `validate --online` imports."""
    end.connector.online_findings(end.settings, Place((), (), Path("."), 1)).close()


class Watcher:
    """Hides packages that an extra does not install, and notes those that are imported while the loop waits for it."""

    def __init__(self, allowed: set[str], distributions: dict[str, list[str]]) -> None:
        self._allowed = allowed
        self._distributions = distributions
        self.on_loop: dict[str, str] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package = name.partition(".")[0]
        of = self._distributions.get(package, [])
        if of and not self._allowed & {normal(one) for one in of}:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return None

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A hook for audit events: `find_spec` is also called to ask only whether a package is installed."""
        package = arguments[0].partition(".")[0] if event == "import" else ""
        if package not in self._distributions or package.startswith(("millstream", "_")):
            return
        if asyncio._get_running_loop() is not None and package not in self.on_loop:
            frames = [frame for frame in traceback.extract_stack() if "/millstream" in frame.filename]
            self.on_loop[package] = f"{frames[-1].filename}:{frames[-1].lineno}"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_by(extras: set[str]) -> set[str]:
    """The distributions that `pip install 'millstream[...]'` installs."""
    found: set[str] = set()
    wanted = [("millstream", frozenset(extras))]
    while wanted:
        name, of = wanted.pop()
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(normal(name))
        for text in requires:
            needed = Requirement(text)
            marker = needed.marker
            applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in (*of, ""))
            if applies and (normal(needed.name) not in found or needed.extras):
                wanted.append((needed.name, frozenset(needed.extras)))
    return found


def run_alone(use: Callable[[dict[str, Any]], Awaitable[None]], settings: dict[str, Any], said: int) -> None:
    """In a process of its own. Writes what it has found to the descriptor."""
    model = Source if use is use_source else FallbackSink
    end = model.model_validate(settings)
    needed = [*end.connector.needs(), *needed_by(end)]
    extras = {one.package.partition("[")[2].rstrip("]") for one in needed}
    watcher = Watcher(installed_by(extras), dict(importlib.metadata.packages_distributions()))
    sys.meta_path.insert(0, watcher)
    sys.addaudithook(watcher.hear)
    missing = ""

    async def used() -> None:
        async with asyncio.timeout(WAIT_S):
            await use(settings)

    try:
        look(end)
        asyncio.run(used())
    except TimeoutError:
        pass
    except ModuleNotFoundError as error:
        missing = repr(error)
    except MillstreamError as error:
        missing = str(error) if error.code is EXTRA_NEEDED else ""
    except Exception:  # noqa: BLE001  # whatever went wrong, the test shows it
        missing = traceback.format_exc()
    os.write(said, json.dumps({"missing": missing, "on_loop": watcher.on_loop}).encode())


def main(directory: Path, port: int, kinds: Sequence[str]) -> None:
    """Nothing listens at the port."""
    logging.disable()
    first = [(use_sink, one) for one in local_sinks(directory) if not kinds or {*one} <= {*kinds}]
    then = [(use_source, one) for one in local_sources(directory)]
    if not kinds:
        then += [(use_sink, {kind: one}) for kind, one in sinks(port).items() if kind not in LOCAL]
        then += [(use_source, {kind: one}) for kind, one in sources(port).items() if kind not in LOCAL]
    found: dict[str, dict[str, Any]] = {}
    for part in (first, then):
        for start in range(0, len(part), TOGETHER):
            children = []
            for use, settings in part[start : start + TOGETHER]:
                hear, say = os.pipe()
                child = os.fork()
                if child == 0:
                    try:
                        run_alone(use, settings, say)
                    finally:
                        os._exit(0)
                os.close(say)
                name = f"{use.__name__} {json.dumps(settings).replace(str(directory), '')[:60]}"
                children.append((name, hear, child))
            for name, hear, child in children:
                with os.fdopen(hear) as said:
                    found[name] = json.loads(said.read() or '{"missing": "it has ended", "on_loop": {}}')
                os.waitpid(child, 0)
    sys.stdout.write(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
