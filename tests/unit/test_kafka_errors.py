"""What the errors of a Kafka client say, and for how long one waits for a cluster."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream import codes
from millstream.blocking import open_thread
from millstream_connectors.kafka.client import Heard, reach, text_of
from millstream_connectors.kafka.settings import KafkaCluster
from tests.support.errors import raises

HEAD = "Failed to acquire SASL OAUTHBEARER token: "


def _shown(said: str) -> str:
    return text_of(KafkaError(KafkaError._AUTHENTICATION, HEAD + said))


@pytest.mark.parametrize(
    "said",
    [
        "Failed to connect to 127.0.0.1:1 after 0 ms: Could not connect to server",
        "Failed to connect to login.example.org port 443 after 75021 ms: Couldn't connect to server",
        "Could not resolve host: login.example.org",
        "Operation timed out after 5000 milliseconds with 0 bytes received",
        "Recv failure: Connection reset by peer",
        "Timeout was reached",
        "SSL certificate OpenSSL verify result: self-signed certificate (18)",
        "SSL certificate problem: unable to get local issuer certificate",
        "SSL: no alternative certificate subject name matches target hostname 'localhost'",
        "TLS connect error: error:0A00010B:SSL routines::wrong version number",
    ],
)
def test_why_a_token_endpoint_cannot_be_reached_is_said(said: str) -> None:
    assert _shown(said) == f"no token from the token endpoint: {said}"


@pytest.mark.parametrize(
    "answer",
    [
        "Could not authenticate client_secret=s3cret",
        "Connection refused for client_secret=s3cret",
        "SSL certificate of s3cret is missing",
        "Timeout was reached\nclient_secret=s3cret",
        "Failed to connect to backend for s3cret",
        "s3cret",
    ],
)
def test_an_answer_is_not_shown_even_if_it_begins_like_an_error_of_the_network(answer: str) -> None:
    assert _shown(answer) == "no token from the token endpoint"


REFUSED = KafkaError(KafkaError._AUTHENTICATION, 'SASL authentication error: {"status":"invalid_token"}')


def test_a_token_of_a_client_that_was_accepted_may_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard("test", logs=False)
    heard.answered()
    for now_s in (1000.0, 1030.0, 1059.0, 2000.0, 2059.0):
        monkeypatch.setattr("millstream_connectors.kafka.client.time.monotonic", lambda now_s=now_s: now_s)
        heard.hear(REFUSED)
        heard.check()
    # The endpoint is still away.
    monkeypatch.setattr("millstream_connectors.kafka.client.time.monotonic", lambda: 2061.0)
    heard.hear(KafkaError(KafkaError._AUTHENTICATION, HEAD + "Timeout was reached"))
    heard.hear(REFUSED)
    heard.check()
    monkeypatch.setattr("millstream_connectors.kafka.client.time.monotonic", lambda: 2121.0)
    heard.hear(REFUSED)
    with raises(codes.TARGET_REFUSES, "invalid_token"):
        heard.check()


def test_a_token_that_no_broker_has_accepted_or_that_the_endpoint_refuses_is_final() -> None:
    never, endpoint = Heard("test", logs=False), Heard("test", logs=False)
    never.hear(REFUSED)
    with raises(codes.TARGET_REFUSES, "invalid_token"):
        never.check()
    endpoint.answered()
    endpoint.hear(KafkaError(KafkaError._AUTHENTICATION, HEAD + '{"error": "invalid_client"}'))
    with raises(codes.TARGET_REFUSES, r"refuses the client \(invalid_client\)"):
        endpoint.check()


async def test_several_calls_may_share_one_time_limit() -> None:
    cluster = KafkaCluster.model_validate({"brokers": ["kafka:9092"]})
    calls: list[float] = []

    def ask(limit_s: float) -> None:
        calls.append(limit_s)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker"))

    async with open_thread("test") as thread:
        with raises(codes.TARGET_AWAY, "did not answer within 5 s: no broker"):
            await thread.run(
                lambda: reach(
                    ask,
                    lambda _: None,
                    Heard("test", logs=False),
                    thread,
                    cluster,
                    "test",
                    limit_s=5.0,
                    since_s=time.monotonic() - 6.0,
                )
            )
    assert len(calls) == 1
