"""Clients of Kafka: their settings, their thread, and the meaning of their errors.

Above it: the `kafka` source and sink. Below it: confluent-kafka, whose calls block, so each lane has a thread for them.
Errors that are not answers to calls (broker unreachable, password refused) arrive in a callback; `Heard` keeps them.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import KAFKA_CALL_S, KAFKA_LOOK_S, KAFKA_REPORTED_EVERY_S
from millstream.spec.references import resolve
from millstream_connectors.kafka.settings import PATTERN, KafkaCluster, KafkaOauthbearer

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
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token:"
"""Beginning of librdkafka's text if it gets no token, followed by the reason or by the answer."""
_TOKEN_REFUSED = re.compile("invalid_token|SASL OAUTHBEARER mechanism handshake failed")
"""In a broker's refusal of a token, which may have expired (RFC 7628, 3.2.2), or has been repeated too soon."""
_TOKEN_LATE_S = 60.0
"""How long brokers may refuse the tokens of a client that they have accepted before, counted from the last time that
the token endpoint did not answer. librdkafka asks it again every ten seconds, or later."""
_OAUTH_REFUSAL = re.compile(
    r'"error"\s*:\s*"(invalid_(?:client|grant|request|scope)|unauthorized_client|unsupported_grant_type|access_denied)"'
)
"""In the answer of a token endpoint that refuses a client permanently (RFC 6749, 5.2)."""
_NOT_A_TOKEN = ("Response is not JSON", "Failed to parse JSON", "Expected ", "Failed to decode JWT")
"""Beginnings of librdkafka's reasons after an answer with status 200."""
_DISTRUST = ("SSL certificate", "SSL: no alternative certificate", "error adding trust anchors")
"""Beginnings of its reasons if it does not trust the token endpoint."""
_HOST = r"[\w.:\[\]-]{1,255}"
_OF_THE_NETWORK = re.compile(
    rf"Could not resolve (?:host|proxy): {_HOST}"
    rf"|Failed to connect to {_HOST}(?: port \d+)?(?: via {_HOST})? after \d+ ms: [A-Za-z' ]+"
    r"|(?:Connection|Operation|Resolving|SSL connection) (?:timed out|timeout)(?: after \d+ (?:ms|milliseconds))?"
    r"(?: with \d+ (?:out of \d+ )?bytes received)?"
    r"|(?:Recv|Send) failure: [A-Za-z' ]+"
    r"|Timeout was reached|SSL connect error|Could not connect to server|Could not resolve (?:hostname|proxy name)"
    r"|Empty reply from server|Server returned nothing \(no headers, no data\)"
    r"|(?:TLS connect error|OpenSSL SSL_(?:connect|read|write)): [\w :,.-]+"
    r"|SSL certificate (?:problem|OpenSSL verify result): [A-Za-z ,/-]+(?: \(\d+\))?"
    rf"|SSL: no alternative certificate subject name matches target [A-Za-z0-9 ]+ '{_HOST}'"
    r"|error adding trust anchors from [A-Za-z ]+: [\w./-]+"
)
"""Its whole reasons for which no answer arrived. Other texts may be answers, which may begin like these."""
_MAY_BE_NEW = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION))
_UNKNOWN = _MAY_BE_NEW | {KafkaError.TOPIC_EXCEPTION}
_NEW_S = 3.0
"""How long what is unknown may be something that was created a moment ago."""


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
        if sasl.oauthbearer is not None:
            settings |= _token_settings(sasl.oauthbearer, base_dir, f"{where}: sasl.oauthbearer")
        else:
            settings["sasl.username"] = resolve(sasl.user, base_dir, f"{where}: sasl.user")
            settings["sasl.password"] = resolve(sasl.password, base_dir, f"{where}: sasl.password")
    encrypted = "SSL" if cluster.tls is not None else "PLAINTEXT"
    settings["security.protocol"] = encrypted if cluster.sasl is None else f"SASL_{encrypted}"
    return settings


def _token_settings(client: KafkaOauthbearer, base_dir: Path, where: str) -> Settings:
    """Settings with which librdkafka gets tokens, in a thread of its own."""
    settings: Settings = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": resolve(client.client_id, base_dir, f"{where}.clientId"),
        "sasl.oauthbearer.client.secret": resolve(client.client_secret, base_dir, f"{where}.clientSecret"),
        "sasl.oauthbearer.token.endpoint.url": client.token_endpoint_url,
    }
    if client.scope is not None:
        settings["sasl.oauthbearer.scope"] = client.scope
    if client.extensions:
        settings["sasl.oauthbearer.extensions"] = ",".join(
            f"{name}={value}" for name, value in client.extensions.items()
        )
    if client.ca is not None:
        settings["https.ca.pem"] = resolve(client.ca, base_dir, f"{where}.ca")
    else:
        # librdkafka's own default is the place of another Linux distribution.
        paths = ssl.get_default_verify_paths()
        if (authorities := paths.cafile or paths.capath) is not None:
            settings["https.ca.location"] = authorities
    return settings


def text_of(error: KafkaError) -> str:
    """The text of an error. Of what a token endpoint has answered, only the code of its error: the rest may repeat the
    client's secret."""
    text = error.str()
    if not text.startswith(_NO_TOKEN):
        return text
    said = text.removeprefix(_NO_TOKEN).strip()
    if (found := _OAUTH_REFUSAL.search(said)) is not None:
        return f"the token endpoint refuses the client ({found[1]})"
    if said.startswith(_NOT_A_TOKEN):
        return "the token endpoint answers with something that is not a token"
    return f"no token from the token endpoint{f': {said}' if _OF_THE_NETWORK.fullmatch(said) else ''}"


def _is_refusal(error: KafkaError) -> bool:
    """Whether an error is a refusal. A token endpoint that cannot be reached, or is out of order, is reported with the
    same code."""
    if error.code() not in _REFUSED:
        return False
    text = error.str()
    if not text.startswith(_NO_TOKEN):
        return True
    said = text.removeprefix(_NO_TOKEN).strip()
    return said.startswith((*_NOT_A_TOKEN, *_DISTRUST)) or _OAUTH_REFUSAL.search(said) is not None


def error_of(failed: KafkaException) -> KafkaError:
    """The error in an exception."""
    error = failed.args[0]
    assert isinstance(error, KafkaError), failed
    return error


def user_error(error: KafkaError, where: str) -> UserError | None:
    """The error to stop with, if only the user can fix the cause; None if waiting may help."""
    code, text = error.code(), text_of(error)
    if _is_refusal(error):
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
    """Errors that a client reports outside the answers to calls. Used by the client's thread. `logs`: whether they are
    also logged, for a client that lives on after them."""

    def __init__(self, where: str, *, logs: bool = True) -> None:
        self._where = where
        self._logs = logs
        self._reported_s: float | None = None
        self.last: KafkaError | None = None
        self._accepted = False
        """Whether the cluster has answered a call."""
        self._refused_s = (-math.inf, -math.inf)
        """When brokers have refused tokens: for the first time without a long pause, and for the last time."""
        self._no_token_s = -math.inf
        """When the token endpoint has not answered for the last time."""
        self._stop: UserError | None = None

    def forget(self) -> None:
        """Forget earlier errors, whose cause may be fixed by now."""
        self._stop = None

    def answered(self) -> None:
        """The cluster has answered a call: it accepts the client."""
        self._accepted = True

    def hear(self, error: KafkaError) -> None:
        """The callback for `error_cb`."""
        now_s = time.monotonic()
        self.last = error
        # After a refusal, the client next reports that it reaches no broker.
        if not self._may_pass(error, now_s):
            self._stop = user_error(error, self._where) or self._stop
        if self._logs and (self._reported_s is None or now_s >= self._reported_s + KAFKA_REPORTED_EVERY_S):
            self._reported_s = now_s
            _log.warning("%s: Kafka: %s", self._where, text_of(error))

    def _may_pass(self, error: KafkaError, now_s: float) -> bool:
        """Whether it is the refusal of a token that has expired, and the next one may be on its way."""
        text = error.str()
        if text.startswith(_NO_TOKEN):
            self._no_token_s = self._no_token_s if _is_refusal(error) else now_s
            return False
        if not self._accepted or _TOKEN_REFUSED.search(text) is None:
            return False
        first_s, last_s = self._refused_s
        first_s = now_s if now_s > last_s + _TOKEN_LATE_S else first_s
        self._refused_s = first_s, now_s
        return now_s < max(first_s, self._no_token_s) + _TOKEN_LATE_S

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
    *,
    limit_s: float | None = None,
    since_s: float | None = None,
) -> _T:
    """The cluster's answer to `ask`, which gets its time limit; waits for unavailable brokers. `serve` makes the client
    call its callbacks.

    Raises `UserError` if waiting does not help, and `RetryLaterError` after `limit_s`, by default `cluster.timeout_s`,
    which begins at `since_s` of the monotonic clock, by default now.
    """
    limit_s = cluster.timeout_s if limit_s is None else limit_s
    deadline_s = (time.monotonic() if since_s is None else since_s) + limit_s
    heard.forget()
    while True:
        thread.check()
        left_s = deadline_s - time.monotonic()
        try:
            answer = ask(max(0.1, min(KAFKA_CALL_S, left_s)))
        except KafkaException as failed:
            error = error_of(failed)
            # Not every broker knows at once of a topic, or of a partition, that was just created.
            may_be_new = error.code() in _MAY_BE_NEW and left_s > max(0.0, limit_s - _NEW_S)
            if not may_be_new and (stop := user_error(error, where)) is not None:
                raise stop from failed
            serve(0)
            heard.check()
            if left_s <= 0:
                why = text_of(heard.last if heard.last is not None else error)
                raise RetryLaterError(
                    codes.TARGET_AWAY,
                    f"{where}: Kafka at {', '.join(cluster.brokers)} did not answer within {limit_s:g} s: "
                    f"{why}. Check that the brokers are running and that `brokers` is right; nothing was lost",
                ) from failed
            thread.wait(min(0.2, left_s))
        else:
            heard.answered()
            return answer


def away(error: KafkaError, where: str) -> MillstreamError:
    """The error for a failed call of a running lane: the call is repeated, unless only the user can fix the cause."""
    return user_error(error, where) or RetryLaterError(codes.TARGET_AWAY, f"{where}: Kafka: {text_of(error)}")


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
    """Check that the cluster answers and has these topics, in less time than `validate --online` gives. Errors: those
    of `reach`."""
    heard = Heard(where, logs=False)
    wait = partial(reach, limit_s=min(cluster.timeout_s, KAFKA_LOOK_S), since_s=time.monotonic())
    settings = {**client_settings(cluster, base_dir, where), "group.id": "millstream", "error_cb": heard.hear}
    async with open_thread("kafka-look") as thread:
        consumer = await thread.run(made, Consumer, settings, where)
        try:
            for topic in topics:
                names = partial(topics_like, consumer, topic)
                for name in await thread.run(wait, names, consumer.poll, heard, thread, cluster, where):
                    asked = partial(topic_partitions, consumer, name)
                    await thread.run(wait, asked, consumer.poll, heard, thread, cluster, where)
        finally:
            thread.end(consumer.close)
