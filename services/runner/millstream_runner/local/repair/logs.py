"""The logs of reduce lanes: checks whether they can be opened, and replaces those that cannot.

    log unusable ─► input kept and complete?  ─► remove the log; the lane rebuilds it from its input
                    otherwise ─► the mark counts its open windows as dropped ─► remove the log ─► a new log

A log is checked by the code that opens it, so everything that a run would refuse is found here.

Imported only for pipelines with a reduce, because its own imports are large. Above it: the repair. Below it: the
reduce's queue.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millstream import codes
from millstream.account import Account
from millstream.durable import step
from millstream.errors import DamageError, FencedError, MillstreamError, UserError
from millstream.ledger.protocol import Ledger
from millstream.ledger.rewriting import rewritten
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.config import window_config
from millstream_reduce.earlier_keys import StoredKeys
from millstream_reduce.lane.progress import check_records_known, progress_of
from millstream_reduce.log.damage import windows_text
from millstream_reduce.log.files import Files
from millstream_reduce.log.inspection import inspect_log
from millstream_reduce.log.log import LogSummary, open_log
from millstream_reduce.log.recovery import LogEnd, read_log
from millstream_reduce.log.segments import LogIdentity, segment_numbers
from millstream_reduce.queue_contents import QueueContents
from millstream_reduce.results import ResultFiles
from millstream_reduce.values import Location, WindowContents
from millstream_reduce.windows import make_windowing

LOST_REASON = "lost with a damaged log (millstream repair)"
"""Reason for dropping the records that were in the windows of a log that was given up."""
OWNER = "repair"


@dataclass(slots=True)
class LogLook:
    """What was found in one lane's log."""

    lane: LaneId
    directory: Path
    exists: bool
    contents: QueueContents | None = None
    """The contents as a run would open it; None if it cannot."""
    faults: list[str] = field(default_factory=list)
    windows: Sequence[WindowContents] = ()
    """Windows that were handed over and are not committed, as far as the log can be read."""

    @property
    def is_behind(self) -> bool:
        """Whether the lane will rebuild it from its input."""
        return self.contents is not None and self.contents.is_behind

    @property
    def windows_text(self) -> str:
        return windows_text(self.windows) if self.windows else ""


class ReduceLogs:
    """The logs of one pipeline that is not running."""

    def __init__(self, plan: Plan, windows: Path) -> None:
        self._plan = plan
        self._windows = windows

    def look(self, lane: LaneId, ledger: Ledger | None, mark: mark_pb2.Mark) -> LogLook:
        """The log as the next run would find it. Blocking."""
        directory = self._windows / lane.vertex / str(lane.partition)
        found = LogLook(lane, directory, exists=directory.is_dir() and bool(segment_numbers(directory)))
        if not found.exists and not mark.HasField("reduce"):
            return found
        if ledger is None:
            if found.exists:
                found.faults.append(f"{directory} contains a log of lane {lane}, whose ledger is missing")
            return found
        if found.exists:
            log = inspect_log(directory, verify=True)
            found.faults += log.faults
            done = mark.reduce.hand_over
            pending = (item for number, item in sorted(log.hand_overs.items()) if number > done)
            found.windows = [window for item in pending for window in item.windows]
        if not found.faults:
            try:
                found.contents = self._read_back(lane, directory, ledger, mark)
            except (DamageError, FencedError, UserError) as error:
                found.faults.append(str(error))
        return found

    def _read_back(self, lane: LaneId, directory: Path, ledger: Ledger, mark: mark_pb2.Mark) -> QueueContents:
        group_by = self._plan.vertex(lane.vertex).group_by
        if group_by is None:
            raise MillstreamError(codes.IMPOSSIBLE, f"lane {lane} has no windows")
        identity = self._identity(lane, mark.epoch + 1, ledger)
        windowing = make_windowing(window_config(group_by))
        contents = QueueContents(
            windowing, progress_of(mark), str(identity), group_by.keeps_input, StoredKeys(directory)
        )
        contents.reset()
        contents.recovered(read_log(directory, identity, contents) if directory.is_dir() else LogEnd(b"", 0, 1, 0))
        results = ResultFiles(directory, Files(), identity)
        if mark.reduce.result_records and results.read(mark.reduce.hand_over + 1) is None:
            raise DamageError(
                codes.RESULTS_LOST,
                f"{identity}: {mark.reduce.result_records} results of hand-over {mark.reduce.hand_over + 1} are "
                f"committed, and the others, which {directory} should contain, are missing",
            )
        if group_by.keeps_input and not contents.is_behind:
            check_records_known(str(identity), directory, contents.records_known(), mark)
        return contents

    def _identity(self, lane: LaneId, epoch: int, ledger: Ledger) -> LogIdentity:
        return LogIdentity(
            pipeline=self._plan.pipeline.name,
            vertex=lane.vertex,
            partition=lane.partition,
            epoch=epoch,
            ledger_id=ledger.ledger_id,
        )

    def remove(self, look: LogLook) -> None:
        """Remove the log. Blocking."""
        with step("repair.log.remove", look.lane.vertex):
            shutil.rmtree(look.directory, ignore_errors=False)

    async def begin_anew(self, look: LogLook, ledger: Ledger) -> int:
        """Continue without the log: its uncommitted contents are counted as dropped. The mark knows the number of these
        records; what came after them is read again.

        If it is interrupted anywhere, it leaves a log that cannot be opened or one that has begun again.
        """
        async with rewritten(ledger, look.lane, OWNER) as mark:
            account = Account.from_message(mark.account)
            lost, account.open = account.open, 0
            if lost:
                account.drop(LOST_REASON, lost)
            mark.account.CopyFrom(account.to_message())
            mark.reduce.closing, mark.reduce.result_records, mark.ended = False, 0, False
        if look.directory.exists():
            self.remove(look)
        async with open_log(look.directory, self._identity(look.lane, mark.epoch, ledger), _NewLog(progress_of(mark))):
            return lost


class _NewLog:
    """Contents of a log that begins at the position of a mark."""

    def __init__(self, progress: mark_pb2.ReduceProgress) -> None:
        self._progress = progress

    def reset(self) -> None:
        pass

    def begin(self, header: wal_pb2.Segment) -> None:
        pass

    def replay(self, entry: wal_pb2.Entry, location: Location, body: memoryview) -> None:
        pass

    def recovered(self, end: LogEnd) -> None:
        pass

    def summary(self) -> LogSummary:
        return LogSummary(
            needed=frozenset(),
            inputs=[
                wal_pb2.InputPosition(edge=done.edge, sequence=done.sequence, read=done.read)
                for done in self._progress.inputs
            ],
            closed_us=self._progress.closed_us,
            last_hand_over=self._progress.hand_over,
        )

    def checkpoint(self) -> wal_pb2.Checkpoint:
        return wal_pb2.Checkpoint()
