"""What `validate --online` asks a Pulsar cluster.

Above it: the `pulsar` source and sink. Below it: a client. Nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pulsar.exceptions import TopicNotFound

from millstream.blocking import open_thread
from millstream.limits import PULSAR_LOOK_S
from millstream_connectors.pulsar.client import open_link
from millstream_connectors.pulsar.settings import PulsarCluster
from millstream_connectors.shared.faults import Fault

_LEFT_MIN_S = 0.1
"""Time for the last question, however long the ones before it took."""


class Looking:
    """The time that is left for everything that is asked of one cluster."""

    def __init__(self) -> None:
        self._until_s = time.monotonic() + PULSAR_LOOK_S

    def timeout_s(self, cluster: PulsarCluster) -> float:
        """The cluster's timeout, or what is left."""
        return max(_LEFT_MIN_S, min(cluster.timeout_s, self._until_s - time.monotonic()))


async def look(cluster: PulsarCluster, topics: Sequence[str], base_dir: Path, looking: Looking) -> list[Fault]:
    """The topics that the cluster does not have. Raises Millstream errors if it cannot be reached."""
    cluster = cluster.model_copy(update={"timeout_s": looking.timeout_s(cluster)})
    missing = []
    async with open_thread("pulsar-look") as thread:
        link = await thread.run(open_link, cluster, base_dir, "validate --online")
        try:
            with link.translated():
                for topic in topics:
                    try:
                        await thread.run(link.partitions, topic)
                    except TopicNotFound:
                        missing.append(Fault(("topic",), f"there is no topic {topic}", "an existing topic"))
        finally:
            thread.end(link.close)
    return missing
