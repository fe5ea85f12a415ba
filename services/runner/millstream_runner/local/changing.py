"""Applies a change to a pipeline between two runs: checks that no records wait where it changed, and removes old data.

    old shape.json ─► differences ─► the broker runs: what waits there? ─► lanes of reduces: what is closed
                                                                                                    │
                    complete shape.json ◄─ data removed ◄─ pipeline.json ◄─ new shape.json ◄────────┘

A run that dies before the new shape is stored has changed nothing that the old pipeline would notice; after that, the
next run completes the change. Above it: the runner. Below it: the view of the broker. It runs before any vertex does,
so what it reads does not change.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millstream import codes
from millstream.audit import spec_digest
from millstream.buffers.placed import placed
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access
from millstream.durable import step
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream.importing import started
from millstream.ledger.protocol import Broker, DurabilityLevel, Ledger
from millstream.ledger.rewriting import rewritten
from millstream.plan import resolved
from millstream.plan.diff import Diff, diff
from millstream.plan.plan import Plan
from millstream.plan.shape import shape_of, successor
from millstream.plurals import counted
from millstream.record import LaneId
from millstream.spec.loading import LoadedPipeline
from millstream.watermark.store import OtStores
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory, KnownLedgers, explained, read_json, write_json, write_text
from millstream_runner.local.moving import gather, separate, take_in
from millstream_runner.local.view import PipelineView, open_view

OWNER = "change"
_log = logging.getLogger(__name__)
_LEAVING = "leaving"
"""A member of the shape while a change is not complete: the vertices whose data is to be removed."""
_REMOVED = "removed"
"""A member of the shape while a change is not complete: the vertex that read each edge which is removed."""
_GATHERED = "gathered"
"""A member of the shape while a change is not complete: the edges that each vertex which remembers now has read."""
_DIVIDED = "divided"
"""A member of the shape while a change is not complete: the vertices that leave their chains and have marks of their
own."""
_MOVED = "moved"
"""A member of the shape while a change is not complete: the vertices whose state moves to other lanes, each with the
number of partitions that it has had at most."""


@dataclass(frozen=True, slots=True)
class PipelineChange:
    """The change from the pipeline that a data directory contains to the one that is about to run."""

    directory: DataDirectory
    loaded: LoadedPipeline
    before: Mapping[str, Any]
    changes: Diff

    async def make(self, access: Access, level: DurabilityLevel) -> None:
        """Apply the change. Raises `UserError`, with what waits, if the pipeline cannot change yet; then nothing was
        changed."""
        former, plan = self._former(), self.loaded.plan
        async with (
            open_view(former, access, level) as view,
            technology_of(former.pipeline).open(access, former.pipeline.name, name="change", require=level) as opened,
        ):
            buffer = placed(opened, plan)
            waiting = [*await _waiting(self.changes, former, view), *await _open(self.changes, former, view)]
            if waiting:
                raise UserError(
                    codes.CHANGED_WHERE_DATA_WAITS,
                    f"the pipeline was changed where records wait: {'; '.join(waiting)}. Run it as it was until "
                    "they are processed (Ctrl-C drains it), then change it; or start over with --fresh, or with "
                    "another --data-dir",
                )
            moved: dict[str, int] = dict(self.before.get(_MOVED, {}))
            for vertex, partitions in self.changes.moved.items():
                moved[vertex] = max(moved.get(vertex, 0), partitions)
                await started(self._fit_of_states, buffer.broker, vertex, moved[vertex])
            await PipelineView(plan, buffer.broker, buffer.stores).separate_edges()
            audit.note(
                self.directory,
                "change",
                **audit.pipeline_of(self.loaded),
                former_spec=spec_digest(self.directory.read_pipeline()),
                leaving=sorted(self.changes.gone),
                moved=sorted(moved),
            )
            for vertex in self.changes.grown:
                ledger = await buffer.broker.existing_ledger(vertex)
                if ledger is not None:
                    await self._keep_closed(ledger, await view.marks(vertex), plan.lanes_of(vertex))
            leaving = sorted({*self.before.get(_LEAVING, ()), *self.changes.gone})
            after = successor(self.before, shape_of(plan))
            removed = {**self.before.get(_REMOVED, {}), **self.changes.removed}
            gathered = {**self.before.get(_GATHERED, {}), **self.changes.gathered}
            unfinished = {**after, _LEAVING: leaving, _REMOVED: removed, _GATHERED: gathered, _MOVED: moved}
            divided = self.before.get(_DIVIDED, ())

            def note(vertices: Collection[str]) -> None:
                write_json(self.directory.shape, {**unfinished, _DIVIDED: sorted(vertices)})

            note(divided)
            write_text(self.directory.pipeline, resolved.dump(plan, self.loaded.base_dir))
            KnownLedgers(self.directory.ledgers).forget(leaving)
            await separate(plan, buffer.broker, buffer.stores, OWNER, note, divided=divided)
            await take_in(plan, buffer.broker, removed, OWNER)
            await gather(plan, buffer.broker, gathered, OWNER)
            for vertex in moved.keys() & set(plan.order):
                entries = await started(self._move_of_states, buffer.broker, buffer.stores, vertex, moved[vertex])
                _log.info("%s of the state of vertex %s moved", counted(entries, "entry", "entries"), vertex)
            used = {plan.ledger_of(vertex) for vertex in plan.order}
            for vertex in leaving:
                await buffer.stores.delete(vertex)
                for ledger_name in {vertex, former.ledger_of(vertex)} - used:
                    await buffer.broker.delete(ledger_name)
                self._remove_files(vertex)
        write_json(self.directory.shape, after)

    # Most runs change nothing, and need none of what these import.

    def _fit_of_states(self, broker: Broker, vertex: str, former: int) -> Coroutine[Any, Any, None]:
        from millstream_runner.local.moving_states import check_states_fit

        return check_states_fit(self.loaded.plan, broker, vertex, former, OWNER, stores=self.directory.states)

    def _move_of_states(
        self, broker: Broker, ot_stores: OtStores, vertex: str, former: int
    ) -> Coroutine[Any, Any, int]:
        from millstream_runner.local.moving_states import move_states

        return move_states(self.loaded.plan, broker, ot_stores, vertex, former, OWNER, stores=self.directory.states)

    async def _keep_closed(
        self, ledger: Ledger, marks: Mapping[LaneId, mark_pb2.Mark], lanes: Sequence[LaneId]
    ) -> None:
        """Tell all lanes of a reduce up to which time windows have had their results, because keys move between
        lanes."""
        closed_us = max((mark.reduce.closed_us for mark in marks.values() if mark.HasField("reduce")), default=None)
        if closed_us is None:
            return
        for lane in lanes:
            before = marks.get(lane)
            if before is not None and before.HasField("reduce") and before.reduce.closed_us == closed_us:
                continue
            async with rewritten(ledger, lane, OWNER) as mark:
                mark.reduce.closed_us = closed_us

    def _former(self) -> Plan:
        """The pipeline that ran last. If a change was not completed, it may lack something that the shape has: that has
        never run."""
        if not self.directory.pipeline.exists():
            raise DamageError(
                codes.SHAPE_UNREADABLE,
                f"{self.directory.pipeline} is missing, so it is unknown whether records wait where the pipeline "
                "was changed: run the pipeline as it was once more, then change it; or start over with --fresh",
            )
        plan = resolved.load(self.directory.read_pipeline()).plan
        is_whole = set(self.changes.emptied) <= {edge.name for edge in plan.graph.edges}
        if not is_whole and _LEAVING not in self.before:
            raise DamageError(
                codes.SHAPE_UNREADABLE,
                f"{self.directory.pipeline} is not the pipeline of {self.directory.shape}, so it is unknown whether "
                "records wait: run the pipeline as it was once more, then change it",
            )
        return plan

    def _remove_files(self, vertex: str) -> None:
        """Remove the logs of a reduce, or the stores of a map, that is not part of the new pipeline."""
        for path in (self.directory.windows / vertex, self.directory.states / vertex):
            with explained(f"cannot remove {path}"), suppress(FileNotFoundError), step("data.leave"):
                shutil.rmtree(path)


def plan_change(
    directory: DataDirectory, before: Mapping[str, Any], loaded: LoadedPipeline, forget: Collection[str]
) -> PipelineChange | None:
    """What has to be done before the pipeline can run; None if it is unchanged. `before`: the stored shape.

    Raises `UserError` for a change that does not fit the stored data.
    """
    found = diff(before, shape_of(loaded.plan), forget=forget)
    if found.refused:
        raise UserError(
            codes.DATA_OF_ANOTHER_PIPELINE,
            f"the data directory {directory.root} contains data of a different pipeline: "
            f"{'; '.join(found.refused)}. Otherwise run with --fresh to remove that data and start over, or with "
            "--data-dir to use another directory",
        )
    return PipelineChange(directory, loaded, before, found) if found.any or _LEAVING in before else None


def claim(directory: DataDirectory, loaded: LoadedPipeline) -> None:
    """Record that a data directory without a change to apply belongs to this pipeline."""
    before = read_json(directory.shape)
    now = shape_of(loaded.plan)
    # The shape is written last: everything in it is then in the pipeline, too, so that a change can ask what waits
    # there.
    write_text(directory.pipeline, resolved.dump(loaded.plan, loaded.base_dir))
    write_json(directory.shape, now if before is None else successor(before, now))


def check_restored(directory: DataDirectory) -> None:
    """Raise `UserError` if a data directory has only a part of the savepoint that a run was to begin with."""
    noted = read_json(directory.restoring)
    if noted is not None:
        savepoint = noted.get("savepoint")
        raise UserError(
            codes.RESTORE_UNFINISHED,
            f"{directory.root} has only a part of the savepoint {savepoint}, because the run that began with it was "
            f"ended: run it again with --from-savepoint {savepoint}, or start over with --fresh",
        )


def check_complete(directory: DataDirectory) -> None:
    """Raise `UserError` if a change of the pipeline was interrupted: what is stored is then in two places. The same if
    it does not have all of a savepoint."""
    check_restored(directory)
    if _LEAVING in (read_json(directory.shape) or {}):
        raise UserError(
            codes.DATA_OF_ANOTHER_PIPELINE,
            f"a change of the pipeline in {directory.root} was interrupted: run it once, which completes the change",
        )


async def _waiting(asked: Diff, former: Plan, view: PipelineView) -> Sequence[str]:
    in_buffers = await view.waiting() if asked.emptied else {}
    found = []
    known = {edge.name for edge in former.graph.edges}
    for edge, reason in asked.emptied.items():
        if edge not in known:
            continue
        records, beyond = 0, ""
        inside = [buffer for buffer in in_buffers if buffer.edge == edge]
        for buffer in former.graph.buffers_of(former.graph.edge(edge)) or inside:
            if buffer in in_buffers:
                records += in_buffers[buffer]
                continue
            # It has none if its vertex has never stored anything.
            with suppress(RetryLaterError):
                await view.ledger_of(buffer)
                beyond = "more than "
        if records or beyond:
            wait = "waits" if records == 1 and not beyond else "wait"
            found.append(f"{reason}, and {beyond}{counted(records, 'record')} {wait} on edge {edge}")
    return found


async def _open(asked: Diff, former: Plan, view: PipelineView) -> Sequence[str]:
    found = []
    known = {vertex.name for vertex in former.graph.vertices}
    for vertex, reason in asked.closed.items():
        if vertex not in known:
            continue
        records = sum(mark.account.open for mark in (await view.marks(vertex)).values())
        if records:
            found.append(
                f"{reason}, and its open windows contain {counted(records, 'record')}; they close when newer records "
                "arrive or the sources end"
            )
    return found
