"""Looks for damage in the stored data of a pipeline, and gives up what cannot be recovered.

    missing ledgers ─► what the broker reports as lost ─► torn batches ─► OT entries ─► marks that went back
                                                    ─► logs of reduce lanes ─► buffers and their readers

The order matters: each stage reads what the ones before have fixed, so one call does everything. Without acceptance
nothing is changed. Every step is durable by itself and may be repeated: a repair that was killed starts again, and
finds what is left.

Above it: the command line. Below it: `marks` and `inputs`, the stages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from millstream.buffers.technology import InterStepBuffer
from millstream.plan.plan import Plan
from millstream_runner.local.ledgers import KnownLedgers
from millstream_runner.local.repair.finding import Finding
from millstream_runner.local.repair.inputs import StageInputs
from millstream_runner.local.repair.marks import Marks
from millstream_runner.local.repair.stored import StoredPipeline


class Repair:
    """The repair of one pipeline that is not running."""

    def __init__(self, plan: Plan, buffer: InterStepBuffer, ledgers: KnownLedgers, windows: Path) -> None:
        stored = StoredPipeline(plan, buffer)
        self._marks = Marks(stored, ledgers)
        self._inputs = StageInputs(stored, windows)

    async def findings(self) -> AsyncIterator[Finding]:
        """All cases of damage, in the order in which they are accepted. Accept each before asking for the next."""
        marks, inputs = self._marks, self._inputs
        for stage in (
            marks.lost_ledgers,
            marks.lost_messages,
            marks.torn,
            marks.unreadable_entries,
            marks.older,
            inputs.logs,
            inputs.buffers,
        ):
            async for finding in stage():
                yield finding
