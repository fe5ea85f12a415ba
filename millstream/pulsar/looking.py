"""What `validate --online` asks a Pulsar cluster.

Above it: the `pulsar` source and sink. Below it: a client. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pulsar.exceptions import TopicNotFound

from millstream.blocking import open_thread
from millstream.pulsar.link import open_link
from millstream.pulsar.settings import PulsarCluster


async def look(cluster: PulsarCluster, topics: Sequence[str], base_dir: Path) -> list[tuple[str, str]]:
    """The topics that the cluster does not have, with what is expected. Raises Millstream errors if it cannot be
    reached."""
    missing = []
    async with open_thread("pulsar-look") as thread:
        link = await thread.run(open_link, cluster, base_dir, "validate --online")
        try:
            with link.translated():
                for topic in topics:
                    try:
                        await thread.run(link.partitions, topic)
                    except TopicNotFound:
                        missing.append((f"there is no topic {topic}", "an existing topic"))
        finally:
            thread.end(link.close)
    return missing
