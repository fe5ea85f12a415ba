"""Clients of Kafka: their settings, their thread, and the meaning of their errors.

Above it: the `kafka` source and sink. Below it: confluent-kafka, whose calls block, so each lane has a thread for them.
Errors that are not answers to calls (broker unreachable, password refused) arrive in a callback; `Heard` keeps them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import KAFKA_CALL_S, KAFKA_REPORTED_EVERY_S
from millstream.spec.kafka import PATTERN, KafkaCluster
from millstream.spec.references import resolve

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Settings = dict[str, Any]

_REFUSED = frozenset((
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError._SSL,
))  # fmt: skip
_UNKNOWN = frozenset((
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
))  # fmt: skip


def client_settings(cluster: KafkaCluster, base_dir: Path, where: str) -> Settings:
    """The settings of every client of the cluster. Errors: `UserError` for a missing secret."""
    # Errors are in the answers and in `Heard`; librdkafka would also write them to the standard error.
    settings: Settings = {"log_level": 0, **cluster.config, "bootstrap.servers": ",".join(cluster.brokers)}
    settings["client.id"] = "millstream"
    if (tls := cluster.tls) is not None:
        for name, secret in (("ca", tls.ca), ("certificate", tls.certificate), ("key", tls.key)):
            if secret is not None:
                settings[f"ssl.{name}.pem"] = resolve(secret, base_dir, f"{where}: tls.{name}")
    if (sasl := cluster.sasl) is not None:
        settings["sasl.mechanism"] = sasl.mechanism
        settings["sasl.username"] = resolve(sasl.user, base_dir, f"{where}: sasl.user")
        settings["sasl.password"] = resolve(sasl.password, base_dir, f"{where}: sasl.password")
    encrypted = "SSL" if cluster.tls is not None else "PLAINTEXT"
    settings["security.protocol"] = encrypted if cluster.sasl is None else f"SASL_{encrypted}"
    return settings


def error_of(failed: KafkaException) -> KafkaError:
    """The error in an exception."""
    error = failed.args[0]
    assert isinstance(error, KafkaError), failed
    return error


def user_error(error: KafkaError, where: str) -> UserError | None:
    """The error to stop with, if only the user can fix the cause; None if waiting may help."""
    code, text = error.code(), error.str()
    if code in _REFUSED:
        what = f"{where}: Kafka refuses the connection or an operation: {text}"
        return UserError(
            codes.TARGET_REFUSES,
            f"{what}. Correct `sasl` or `tls`, or grant the missing permission (docs/connectors/kafka.md lists "
            "those that are needed)",
        )
    if code in _UNKNOWN:
        return UserError(
            codes.TARGET_UNFIT,
            f"{where}: Kafka has no such topic: {text}. Create the topic, or correct its name",
        )
    if code in (KafkaError._INVALID_ARG, KafkaError.INVALID_CONFIG):
        return UserError(codes.CONNECTOR_SETTINGS, f"{where}: librdkafka refuses a setting: {text}. Correct `config`")
    return None


class Heard:
    """Errors that a client reports outside the answers to calls. Used by the client's thread."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._reported_s: float | None = None
        self.last: KafkaError | None = None
        self._stop: UserError | None = None

    def forget(self) -> None:
        """Forget earlier errors, whose cause may be fixed by now."""
        self._stop = None

    def hear(self, error: KafkaError) -> None:
        """The callback for `error_cb`."""
        self.last = error
        # After a refusal, the client next reports that it reaches no broker.
        self._stop = user_error(error, self._where) or self._stop
        now_s = time.monotonic()
        if self._reported_s is None or now_s >= self._reported_s + KAFKA_REPORTED_EVERY_S:
            self._reported_s = now_s
            _log.warning("%s: Kafka: %s", self._where, error.str())

    def check(self) -> None:
        """Raises `UserError` if only the user can fix the cause of an error since `forget`."""
        if self._stop is not None:
            raise self._stop


def made(client: Callable[[Settings], _T], settings: Mapping[str, Any], where: str) -> _T:
    """Create a client. Raises `UserError` for a setting that librdkafka refuses."""
    try:
        return client(dict(settings))
    except KafkaException as failed:
        raise user_error(error_of(failed), where) or UserError(
            codes.CONNECTOR_SETTINGS, f"{where}: librdkafka: {error_of(failed).str()}"
        ) from failed


def reach(
    ask: Callable[[float], _T],
    serve: Callable[[float], object],
    heard: Heard,
    thread: ClientThread,
    cluster: KafkaCluster,
    where: str,
) -> _T:
    """The cluster's answer to `ask`, which gets its time limit; waits for unavailable brokers. `serve` makes the client
    call its callbacks.

    Raises `UserError` if waiting does not help, and `RetryLaterError` after `cluster.timeout_s`.
    """
    deadline_s = time.monotonic() + cluster.timeout_s
    heard.forget()
    while True:
        thread.check()
        left_s = deadline_s - time.monotonic()
        try:
            return ask(max(0.1, min(KAFKA_CALL_S, left_s)))
        except KafkaException as failed:
            error = error_of(failed)
            if (stop := user_error(error, where)) is not None:
                raise stop from failed
            serve(0)
            heard.check()
            if left_s <= 0:
                why = heard.last.str() if heard.last is not None else error.str()
                raise RetryLaterError(
                    codes.TARGET_AWAY,
                    f"{where}: Kafka at {', '.join(cluster.brokers)} did not answer within {cluster.timeout_s:g} s: "
                    f"{why}. Check that the brokers are running and that `brokers` is right; nothing was lost",
                ) from failed
            thread.wait(min(0.2, left_s))


def away(error: KafkaError, where: str) -> MillstreamError:
    """The error for a failed call of a running lane: the call is repeated, unless only the user can fix the cause."""
    return user_error(error, where) or RetryLaterError(codes.TARGET_AWAY, f"{where}: Kafka: {error.str()}")


def topic_partitions(consumer: Consumer, topic: str, limit_s: float) -> list[int]:
    """The partitions of a topic. Raises `KafkaException`, also if there is no such topic."""
    found = consumer.list_topics(topic, limit_s).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)


def topics_like(consumer: Consumer, topic: str, limit_s: float) -> list[str]:
    """The topics that match a pattern now, without Kafka's internal ones. A name that is not a pattern stands for
    itself."""
    if not topic.startswith(PATTERN):
        return [topic]
    found = consumer.list_topics(timeout=limit_s).topics
    return sorted(name for name in found if not name.startswith("__") and re.match(topic, name))


async def look_for_topics(cluster: KafkaCluster, topics: Sequence[str], base_dir: Path, where: str) -> None:
    """Check that the cluster answers and has these topics. Errors: those of `reach`."""
    heard = Heard(where)
    settings = {**client_settings(cluster, base_dir, where), "group.id": "millstream", "error_cb": heard.hear}
    async with open_thread("kafka-look") as thread:
        consumer = await thread.run(made, Consumer, settings, where)
        try:
            for topic in topics:
                names = partial(topics_like, consumer, topic)
                for name in await thread.run(reach, names, consumer.poll, heard, thread, cluster, where):
                    asked = partial(topic_partitions, consumer, name)
                    await thread.run(reach, asked, consumer.poll, heard, thread, cluster, where)
        finally:
            thread.end(consumer.close)
