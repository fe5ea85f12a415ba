"""Ids of topics: a topic that is deleted and recreated under its name has another id, and offsets of its own.

Above it: the lane, which has the id of each topic in its position. Below it: an admin client, the only client that
learns the ids. Its calls block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from millstream_connectors.kafka.client import made

_OF_CONNECTIONS = (
    *("bootstrap.servers", "security.protocol", "log_level"),
    *("sasl.", "ssl.", "https.", "socket.", "broker.", "metadata.", "reconnect.", "client."),
)
"""Beginnings of the names of settings that the connections of every client need."""


class TopicIds:
    """The ids that the cluster gives its topics."""

    def __init__(self, settings: Mapping[str, Any], where: str) -> None:
        """`settings`: of the lane's consumer."""
        wanted = {name: value for name, value in settings.items() if name.startswith(_OF_CONNECTIONS)}
        self._client: AdminClient = made(AdminClient, wanted, where)

    def ask(self, topics: Iterable[str], limit_s: float) -> dict[str, str]:
        """The id of each topic; of a cluster without ids (before 2.8), none. Raises `KafkaException`, also if there is
        no such topic."""
        asked = self._client.describe_topics(TopicCollection(sorted(topics)), request_timeout=limit_s)
        found: dict[str, str] = {}
        for topic, answer in asked.items():
            try:
                topic_id = answer.result(limit_s + 1.0).topic_id
            except FutureTimeoutError:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            if topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits():
                found[topic] = str(topic_id)
        return found
