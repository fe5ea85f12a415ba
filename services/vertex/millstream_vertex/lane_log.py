"""What a process logs about its lanes when it opens them and when they are done.

Above it: the assembly. Below it: marks and statistics.
"""

from __future__ import annotations

import logging

from millstream.account import Account, consumed
from millstream.record import LaneId
from millstream.statistics import LaneStatistics
from millstream.wire.ledger.v1 import mark_pb2

log = logging.getLogger(__name__)


def log_opened(lane: LaneId, mark: mark_pb2.Mark) -> None:
    """Log where the lane begins or resumes."""
    inputs = Account.from_message(mark.account).inputs
    fields: dict[str, object] = {"lane": lane.key, "epoch": mark.epoch, "inputs": inputs}
    places = [done for done in consumed(lane, mark) if done.position.sequence]
    if mark.ended:
        log.info("lane %s ended in an earlier run: it has read %s records", lane, f"{inputs:,}", extra=fields)
    elif inputs or places or mark.position:
        where = "".join(f", {done.buffer.key} up to sequence {done.position.sequence}" for done in places)
        if places:
            fields["sequence"] = max(done.position.sequence for done in places)
        log.info("lane %s resumes after %s records%s (epoch %d)", lane, f"{inputs:,}", where, mark.epoch, extra=fields)
    else:
        log.info("lane %s begins (epoch %d)", lane, mark.epoch, extra=fields)


def log_finished(statistics: LaneStatistics) -> None:
    """Log the lane's account since its first commit."""
    counts = {
        "processed": statistics.processed,
        "filtered": statistics.filtered,
        "dead-lettered": statistics.dead_lettered,
        "dropped": sum(statistics.dropped.values()),
        "sent to a late edge": statistics.diverted,
        "kept for open windows": statistics.open,
    }
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    log.info(
        "lane %s %s: %s records read%s",
        statistics.lane,
        "ended" if statistics.ended else "stopped",
        f"{statistics.inputs:,}",
        f": {parts}" if parts else "",
        extra={"lane": statistics.lane.key, "epoch": statistics.epoch, "inputs": statistics.inputs},
    )
