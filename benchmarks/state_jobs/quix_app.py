"""Quix Streams: from a topic to a topic, in one process."""

import sys
import time
from pathlib import Path

from quixstreams import Application, State  # type: ignore[import-not-found]
from state_jobs.counting import advance_bytes, begin


def _count(record: bytes, state: State) -> bytes:
    begin()
    after = advance_bytes(state.get_bytes("last"), record)
    state.set_bytes("last", after)
    return after


def main() -> None:
    brokers, topic, target, records, interval_s = sys.argv[1:]
    app = Application(
        brokers,
        consumer_group=target,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=float(interval_s),
        use_changelog_topics=True,
        state_dir="state",
        loglevel="ERROR",
        producer_extra_config={"acks": "all", "linger.ms": 100, "compression.type": "lz4"},
    )
    source = app.topic(topic, value_deserializer="bytes")
    sink = app.topic(target, value_serializer="bytes")
    app.dataframe(source).apply(_count, stateful=True).to_topic(sink)
    app.run(count=int(records), collect=False)
    # The last transaction is committed when `run` returns.
    (Path("out") / "ended").write_text(str(time.time()))


main()
