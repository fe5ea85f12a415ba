"""Sets back the windows of a lane whose watermark was moved too far ahead: they are open again for new records.

A window that may have had records of its own time stays closed, so that it has one result.

Above it: `millstream watermark`. Below it: the lane's log, which it owns temporarily.
"""

from __future__ import annotations

from pathlib import Path

from millstream import codes
from millstream.clock import END_OF_TIME_US
from millstream.errors import UserError
from millstream.limits import LOG_SEGMENT_BYTES, LOG_UNSYNCED_BYTES_MAX, MIB
from millstream.wire.ledger.v1 import mark_pb2
from millstream_reduce.earlier_keys import StoredKeys
from millstream_reduce.log.files import Files
from millstream_reduce.log.log import LogSizes, open_log
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue_contents import QueueContents
from millstream_reduce.windows import WindowConfig, encoding, make_windowing


def closed_by(time_us: int, config: WindowConfig) -> tuple[int, int]:
    """Up to which time windows stay closed, so that no window is reopened that a record up to this time may be in: the
    time by which they end, and the same including the lateness."""
    if config.kind in ("fixed", "sliding"):
        slide_us = config.slide_us or config.length_us
        end_us = time_us // slide_us * slide_us + config.length_us
    else:
        end_us = time_us + config.timeout_us
    return end_us, min(end_us + config.lateness_us, END_OF_TIME_US - 1)


async def set_log_back(
    directory: Path,
    identity: LogIdentity,
    config: WindowConfig,
    progress: mark_pb2.ReduceProgress,
    closed_us: int,
) -> None:
    """Have the log say that windows are closed up to there only, with everything else as it is. Durable at the return.

    `progress` is that of the lane's mark, taken over under `identity.epoch`; it has to be set back as well, for the
    later of the two counts. Raises as `open_log` does, and `UserError` for a log that cannot be set back.
    """
    contents = QueueContents(
        make_windowing(config), progress, str(identity), input_is_kept=False, key_of_row=StoredKeys(directory)
    )
    sizes = LogSizes(LOG_SEGMENT_BYTES, LOG_UNSYNCED_BYTES_MAX + 16 * MIB)
    async with open_log(directory, identity, contents, files=Files(), sizes=sizes) as log:
        if contents.windowing.closed_us >= END_OF_TIME_US:
            raise UserError(
                codes.NOT_SET_BACK, f"{identity}: its input has ended, so its event time cannot be set back"
            )
        floor_us = closed_us - config.lateness_us
        last = (floor_us - config.length_us) // (config.slide_us or config.length_us or 1)
        contents.set_back(encoding.set_back(contents.windowing.checkpoint(), closed_us, floor_us, last), closed_us)
        log.begin_segment(anew=True)
        await log.sync()
