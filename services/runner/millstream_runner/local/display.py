"""What a run shows: its progress on the screen and in small files of its data directory, and the log entries of
vertices that the screen has room for. The log files have all entries, whatever is shown.

Above it: the run. Below it: the screen and the directory.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from millstream.clock import Clock
from millstream.errors import InfrastructureError
from millstream.telemetry.logging import NOTICE
from millstream_runner.local.directory import DataDirectory, write_text
from millstream_runner.local.logfiles import short_entry
from millstream_runner.local.members import Members
from millstream_runner.local.progress import PipelineProgress, VertexProgress
from millstream_runner.local.recording import Recording
from millstream_runner.local.replica import Failure
from millstream_runner.local.scene import Scene
from millstream_runner.local.screen import MESSAGES_PER_S, Screen
from millstream_runner.local.states import State
from millstream_runner.local.view import PipelineView

_log = logging.getLogger(__name__)

UNCHANGED_WRITTEN_EVERY_S = 1.0
"""The status file is written again after this time even if nothing has changed: its age shows that the runner is
alive."""

_REPEAT_S = 30.0
"""Time after which the same line of a vertex is shown again."""
_NOTICE_S = 1.0
"""The same for a notice."""
_REMEMBERED_MAX = 1000


class Display:
    """Shows the progress of a run."""

    def __init__(
        self,
        screen: Screen,
        directory: DataDirectory,
        clock: Clock,
        recording: Recording,
        name: str,
        durability: str,
    ) -> None:
        """`name`: that of the pipeline. `durability`: the requested level, until the broker has reported its own."""
        self._screen = screen
        self._directory = directory
        self._clock = clock
        self._recording = recording
        self._begun_s = clock.monotonic_s()
        self._name = name
        self._durability = durability
        self._last_trouble = ""
        self._vertices: Sequence[VertexProgress] = ()
        self._taken_s: float | None = None
        """When the broker last reported them."""
        self._written: Mapping[str, int] = {}
        self._state: State | None = None
        self._kept: tuple[object, ...] = ()
        """What the status file says, without the values that change by themselves."""
        self._kept_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self._clock.monotonic_s() - self._begun_s

    async def find_durability(self, view: PipelineView) -> None:
        """Ask the broker, until it has answered once."""
        if not self._recording.durability and (found := await view.durability()) is not None:
            self._durability = f"{found.level.value} ({'verified' if found.verified else 'not verified'})"
            self._recording.durability = self._durability

    def take(self, progress: PipelineProgress, edges: Iterable[str]) -> bool:
        """Take the figures of this moment, which the broker has just reported; they are kept until there are newer
        ones. Returns whether any lane has advanced since the last ones."""
        before = [one.lanes for one in self._vertices]
        self._taken_s = self._clock.monotonic_s()
        self._vertices = progress.sample(now_us=self._clock.now_us(), now_s=self._taken_s)
        self._written = {edge: progress.written(edge) for edge in edges}
        self._recording.take(self.elapsed_s, self._vertices)
        return [one.lanes for one in self._vertices] != before

    def show(self, state: State, waits_for: str, progress: PipelineProgress, members: Members) -> None:
        """Show the current state on the screen and in the status file."""
        now_s = self._clock.monotonic_s()
        scene = Scene(
            pipeline=self._name,
            state=state.value,
            elapsed_s=self.elapsed_s,
            durability=self._durability,
            vertices=self._vertices or progress.sample(now_us=self._clock.now_us(), now_s=now_s),
            states=members.states(),
            spark=members.spark.text if members.spark is not None else "",
            waits_for=waits_for,
            age_s=0.0 if self._taken_s is None else now_s - self._taken_s,
        )
        if state is not self._state:
            self._state = state
            self._recording.states.append((self.elapsed_s, state.value))
            _log.info("the run is %s%s", state.value, f", and waits for {waits_for}" if waits_for else "")
        self._screen.show(scene)
        self._keep_status(scene, members.failure, now_s)

    def _keep_status(self, scene: Scene, failure: Failure | None, now_s: float) -> None:
        kept = _without_times(scene, self._written, failure)
        if kept == self._kept and now_s < self._kept_s + UNCHANGED_WRITTEN_EVERY_S:
            return
        self._kept, self._kept_s = kept, now_s
        status = {
            **_as_object(scene),
            "edges": self._written,
            "failure": failure.as_json() if failure is not None else None,
            "written_us": self._clock.now_us(),
        }
        # On one line: with line breaks it takes Python ten times as long, and this runs as long as a run does.
        self._keep(self._directory.status, json.dumps(status, default=_as_object) + "\n")

    def note_processes(self, members: Members) -> None:
        """Record which processes there are, so that another process can end them if this one dies."""
        runtime = members.runtime()
        if runtime is not None:
            # Not fsynced: a machine that loses this write has lost the processes, too.
            self._keep(self._directory.runtime, json.dumps(asdict(runtime), indent=1) + "\n")

    def _keep(self, path: Path, text: str) -> None:
        """Write a small file for other processes. A full disk must not stop the run because of it."""
        try:
            write_text(path, text, durable=False)
        except InfrastructureError as error:
            if str(error) != self._last_trouble:
                self._last_trouble = str(error)
                self._screen.message(f"warning: {error}")


class ShownEntries:
    """Shows warnings and worse, at a bounded rate, and repeats the same one only after a while."""

    def __init__(self, screen: Screen, clock: Clock, recording: Recording) -> None:
        self._screen = screen
        self._clock = clock
        self._recording = recording
        self._begun_s = clock.monotonic_s()
        self._count = 0
        """Entries shown or omitted since `_since_s`."""
        self._since_s = 0.0
        self._shown_s: dict[str, float] = {}
        """When each text was last shown."""
        self._repeats: Counter[str] = Counter()
        """How often each has occurred since."""

    def say(self, entry: Mapping[str, Any]) -> None:
        """Show an entry, no matter how many there are."""
        self._recording.entry(self._clock.monotonic_s() - self._begun_s, entry)
        self._screen.message(short_entry(entry))

    def show(self, entry: Mapping[str, Any]) -> bool:
        """Show an entry, unless there are too many. Returns whether it was shown."""
        now_s = self._clock.monotonic_s()
        self._recording.entry(now_s - self._begun_s, entry)
        if now_s - self._since_s >= 1.0:
            if self._count > MESSAGES_PER_S:
                self._screen.message(f"... and {self._count - MESSAGES_PER_S} more lines: see `millstream logs`")
            self._since_s, self._count = now_s, 0
        text = short_entry(entry)
        # Lanes that wait for something say so at every attempt. A notice is about a moment, and each replica sends one.
        notice = bool(entry.get(NOTICE))
        key = f"{entry.get('vertex') or entry.get('process')}: {entry.get('message')}" if notice else text
        if now_s - self._shown_s.get(key, -_REPEAT_S) < (_NOTICE_S if notice else _REPEAT_S):
            self._repeats[key] += not notice
            return True
        if len(self._shown_s) > _REMEMBERED_MAX:
            self._shown_s.clear()
            self._repeats.clear()
        self._count += 1
        if self._count > MESSAGES_PER_S:
            return False
        self._shown_s[key] = now_s
        times = self._repeats.pop(key, 0)
        self._screen.message(f"{text} ({times} more times since it was last shown)" if times else text)
        return True


def _without_times(scene: Scene, written: Mapping[str, int], failure: Failure | None) -> tuple[object, ...]:
    """What a scene says, apart from how long ago something was."""
    vertices = [(one.lanes, one.written, one.fill, one.records_per_s, one.published) for one in scene.vertices]
    return (scene.state, scene.waits_for, scene.durability, scene.states, scene.spark, vertices, written, failure)


def _as_object(value: Any) -> dict[str, Any]:
    """A dataclass for JSON: like `asdict`, but without copying every number."""
    return {field.name: getattr(value, field.name) for field in fields(value)}
