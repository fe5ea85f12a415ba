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
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from millstream.codes import EXTRA_NEEDED
from millstream.spec.needs import needed_by
from tests.support.addresses import LOCAL, sinks, sources
from tests.support.opened_ends import end_of, local_sinks, local_sources, outcome

TOGETHER = 4
"""Processes at a time. Most of them wait for a server that does not answer."""


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


def run_alone(use: str, settings: dict[str, Any], said: int) -> None:
    """In a process of its own. Writes what it has found to the descriptor."""
    end = end_of(use, settings)
    needed = [*end.connector.needs(), *needed_by(end)]
    extras = {one.package.partition("[")[2].rstrip("]") for one in needed}
    watcher = Watcher(installed_by(extras), dict(importlib.metadata.packages_distributions()))
    sys.meta_path.insert(0, watcher)
    sys.addaudithook(watcher.hear)
    came = outcome(use, settings)
    missing = came.get("raised", "")
    if came.get("code") == str(EXTRA_NEEDED):
        missing = came["text"]
    os.write(said, json.dumps({"missing": missing, "on_loop": watcher.on_loop}).encode())


def main(directory: Path, port: int, kinds: Sequence[str]) -> None:
    """Nothing listens at the port."""
    logging.disable()
    first = [("sink", one) for one in local_sinks(directory) if not kinds or {*one} <= {*kinds}]
    then = [("source", one) for one in local_sources(directory)]
    if not kinds:
        then += [("sink", {kind: one}) for kind, one in sinks(port).items() if kind not in LOCAL]
        then += [("source", {kind: one}) for kind, one in sources(port).items() if kind not in LOCAL]
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
                name = f"{use} {json.dumps(settings).replace(str(directory), '')[:60]}"
                children.append((name, hear, child))
            for name, hear, child in children:
                with os.fdopen(hear) as said:
                    found[name] = json.loads(said.read() or '{"missing": "it has ended", "on_loop": {}}')
                os.waitpid(child, 0)
    sys.stdout.write(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
