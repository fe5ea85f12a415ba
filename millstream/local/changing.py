"""A pipeline that was changed between two runs: nothing may wait where it changed, and what it does not need goes.

    shape.json, as it was ─► differences ─► the broker is up: what waits there? ─► shape.json, as it is ─► data goes

Above it: the runner. Below it: the view of the broker. It runs before any vertex does, so what it reads stands still.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.durable import step
from millstream.errors import DamageError, EnvironmentFault, RetryLaterError, UserError
from millstream.ledger.protocol import DurabilityLevel
from millstream.local.directory import DataDirectory, read_json, write_json
from millstream.local.ledgers import KnownLedgers
from millstream.local.shape import Changes, changes, shape_of, successor
from millstream.local.view import PipelineView, open_view
from millstream.spec import resolved
from millstream.spec.graph import Graph
from millstream.spec.lanes import buffers_of
from millstream.spec.loading import Loaded
from millstream.wire.access import BrokerAccess

_LEAVING = "leaving"
"""In the shape: vertices whose data is not removed yet."""


@dataclass(frozen=True, slots=True)
class Change:
    """From the pipeline that a data directory holds to the one that is to run."""

    directory: DataDirectory
    loaded: Loaded
    before: Mapping[str, Any]
    changes: Changes

    async def make(self, access: BrokerAccess, level: DurabilityLevel) -> None:
        """Raises `UserError`, with what waits, when the pipeline cannot change yet; then nothing was changed."""
        former = self._former()
        async with open_view(former, access, level) as view:
            waiting = [*await _waiting(self.changes, former, view), *await _open(self.changes, view)]
            if waiting:
                raise UserError(
                    f"the pipeline was changed where something waits: {'; '.join(waiting)}. Run it as it was until "
                    "that is done (Ctrl-C drains it), then change it; or start over with --fresh, or with another "
                    "--data-dir"
                )
            leaving = sorted({*self.before.get(_LEAVING, ()), *self.changes.gone})
            after = successor(self.before, shape_of(self.loaded.graph))
            write_json(self.directory.shape, {**after, _LEAVING: leaving} if leaving else after)
            self.directory.write_pipeline(resolved.dump(self.loaded.pipeline, self.loaded.base_dir))
            KnownLedgers(self.directory.ledgers).forget(leaving)
            for vertex in leaving:
                await view.remove(vertex)
                self._remove_windows(vertex)
        if leaving:
            write_json(self.directory.shape, after)

    def _former(self) -> Graph:
        """The pipeline as it ran last."""
        try:
            graph = resolved.load(self.directory.read_pipeline()).graph
        except OSError as error:
            raise EnvironmentFault(f"cannot read {self.directory.pipeline}: {error.strerror}") from error
        if not set(self.changes.emptied) <= {edge.name for edge in graph.edges}:
            raise DamageError(
                f"{self.directory.pipeline} is not the pipeline of {self.directory.shape}, so what waits cannot be "
                "told: run the pipeline as it was once more, then change it"
            )
        return graph

    def _remove_windows(self, vertex: str) -> None:
        path = self.directory.windows / vertex
        try:
            with step("data.leave"):
                shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise EnvironmentFault(f"cannot remove {path}: {error.strerror}") from error


def plan_change(directory: DataDirectory, loaded: Loaded, forget: Collection[str]) -> Change | None:
    """What has to be done before the pipeline can run; None when it is as it was, or has never run.

    Raises `UserError` for a change that no stored data would fit.
    """
    before = read_json(directory.shape)
    if before is None:
        return None
    found = changes(before, shape_of(loaded.graph), forget=forget)
    if found.refused:
        raise UserError(
            f"the data directory {directory.root} holds data of a different pipeline: {'; '.join(found.refused)}. "
            "Otherwise run with --fresh to remove that data and start over, or with --data-dir to use another directory"
        )
    return Change(directory, loaded, before, found) if found.any or before.get(_LEAVING) else None


async def _waiting(asked: Changes, former: Graph, view: PipelineView) -> Sequence[str]:
    counted = await view.waiting() if asked.emptied else {}
    found = []
    for edge, reason in asked.emptied.items():
        records, beyond = 0, ""
        for buffer in buffers_of(former, former.edge(edge)):
            if buffer in counted:
                records += counted[buffer]
                continue
            try:
                await view.ledger_of(buffer)
                beyond = "more than "
            except RetryLaterError:
                pass  # its vertex has never stored anything
        if records or beyond:
            found.append(f"{reason}, and {beyond}{records:,} record(s) wait in edge {edge}")
    return found


async def _open(asked: Changes, view: PipelineView) -> Sequence[str]:
    found = []
    for vertex, reason in asked.closed.items():
        records = sum(mark.account.open for mark in (await view.marks(vertex)).values())
        if records:
            found.append(f"{reason}, and {records:,} record(s) are in its open windows")
    return found
