"""What others see of a run: the screen, and small files in its data directory.

Above it: the run. Below it: the screen and the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millstream.clock import Clock
from millstream.errors import InfrastructureError
from millstream_runner.local.directory import DataDirectory, write_json
from millstream_runner.local.members import Members
from millstream_runner.local.progress import PipelineProgress, VertexProgress
from millstream_runner.local.recording import Recording
from millstream_runner.local.scene import Scene
from millstream_runner.local.screen import Screen
from millstream_runner.local.states import State
from millstream_runner.local.view import PipelineView

_log = logging.getLogger(__name__)


class Display:
    """Shows how far a run is."""

    def __init__(
        self,
        screen: Screen,
        directory: DataDirectory,
        clock: Clock,
        recording: Recording,
        name: str,
        durability: str,
    ) -> None:
        """`name`: of the pipeline. `durability`: what was asked for, until the broker has said what it keeps."""
        self._screen = screen
        self._directory = directory
        self._clock = clock
        self._recording = recording
        self._begun_s = clock.monotonic_s()
        self._name = name
        self._durability = durability
        self._durability_found = False
        self._last_trouble = ""
        self._vertices: Sequence[VertexProgress] = ()
        self._taken_s: float | None = None
        """When the broker told what they are."""
        self._written: Mapping[str, int] = {}
        self._state: State | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return self._clock.monotonic_s() - self._begun_s

    async def find_durability(self, view: PipelineView) -> None:
        """Ask the broker, until it has said so once."""
        if not self._durability_found and (found := await view.durability()) is not None:
            self._durability = f"{found.level.value} ({'verified' if found.verified else 'not verified'})"
            self._durability_found = True
            self._recording.durability = self._durability

    def take(self, progress: PipelineProgress, edges: Iterable[str]) -> None:
        """The figures of this moment, which the broker has just told. They stand until there are newer ones."""
        self._taken_s = self._clock.monotonic_s()
        self._vertices = progress.sample(now_us=self._clock.now_us(), now_s=self._taken_s)
        self._written = {edge: progress.written(edge) for edge in edges}
        self._recording.take(self.elapsed_s, self._vertices)

    def show(self, state: State, waits_for: str, progress: PipelineProgress, members: Members) -> None:
        """How it is now, on the screen and in the status file."""
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
            self._recording.state(self.elapsed_s, state.value)
            _log.info("the run is %s%s", state.value, f", and waits for {waits_for}" if waits_for else "")
        self._screen.show(scene)
        failure = members.failure
        more = {
            "edges": self._written,
            "failure": failure.as_json() if failure is not None else None,
            "written_us": self._clock.now_us(),
        }
        self._keep(self._directory.status, {**asdict(scene), **more})

    def note_processes(self, members: Members) -> None:
        """Which processes there are, so that another process can end them when this one is gone."""
        runtime = members.runtime()
        if runtime is not None:
            self._keep(self._directory.runtime, asdict(runtime))

    def _keep(self, path: Path, data: Mapping[str, Any]) -> None:
        """Write a small file for others to look at. A full disk must not stop the run over it."""
        try:
            write_json(path, data, durable=False)
        except InfrastructureError as error:
            if str(error) != self._last_trouble:
                self._last_trouble = str(error)
                self._screen.message(f"warning: {error}")
