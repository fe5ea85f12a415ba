"""A process that writes numbered records to Kafka, one frame after another, until it is killed or done.

python -m tests.contract.with_kafka.sink_process BROKERS TOPIC EPOCH FRAMES
"""

from __future__ import annotations

import asyncio
import sys

from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.unit.writer.sink_frames import sink_frame

FRAME_RECORDS = 10


async def write(brokers: str, topic: str, epoch: int, frames: int) -> None:
    """All of it, offered from the very start: the mark of the lane has never moved."""
    spec = FallbackSink.model_validate({"kafka": {"brokers": [brokers], "topic": topic}})
    async with open_sink(spec, sink_owner(epoch)) as lane:
        _say("open")
        for number in range(1, frames + 1):
            first = (number - 1) * FRAME_RECORDS
            values = [value_of(n) for n in range(first, first + FRAME_RECORDS)]
            await lane.write([sink_frame(values, number)], Position(number))
            _say(str(number))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
