"""Which errors of a RabbitMQ server pass, and which ones a user has to do something about."""

from __future__ import annotations

import pytest
from aiormq.exceptions import (
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream_connectors.rabbitmq.client import error_of
from millstream_connectors.rabbitmq.settings import RabbitServer

SERVER = RabbitServer.model_validate({"url": "amqp://127.0.0.1:5672"})


@pytest.mark.parametrize(
    "error",
    [
        ChannelPreconditionFailed(
            "PRECONDITION_FAILED - queue 'queue 'orders' in vhost '/'' does not have a replica on the local node"
        ),
        ChannelPreconditionFailed(
            "PRECONDITION_FAILED - stream queue 'orders' in vhost '/' does not have a running replica on the local node"
        ),
        ChannelPreconditionFailed(
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms"
        ),
        ChannelNotFoundEntity(
            "NOT_FOUND - home node 'rabbit@here' of durable queue 'orders' in vhost '/' is down or inaccessible"
        ),
        ConnectionResetError(),
        TimeoutError(),
    ],
)
def test_a_server_that_is_starting_or_away_is_tried_again(error: BaseException) -> None:
    assert isinstance(error_of(error, SERVER, "lane in.0"), RetryLaterError)


@pytest.mark.parametrize(
    "error",
    [
        ChannelPreconditionFailed("PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'orders' in vhost '/'"),
        ChannelNotFoundEntity("NOT_FOUND - no queue 'orders' in vhost '/'"),
        ChannelAccessRefused("ACCESS_REFUSED - access to queue 'orders' in vhost '/' refused for user 'guest'"),
    ],
)
def test_what_a_user_has_to_change_stops_the_lane(error: BaseException) -> None:
    assert isinstance(error_of(error, SERVER, "lane in.0"), UserError)


def test_a_server_that_takes_no_certificates_is_not_taken_for_one_that_refuses_the_user() -> None:
    own = {"certificate": {"env": "CERTIFICATE"}, "key": {"env": "KEY"}}
    server = RabbitServer.model_validate({"url": "amqps://127.0.0.1:5671", "tls": own})
    error = error_of(AuthenticationError("AMQPLAIN PLAIN", ["PLAIN", "EXTERNAL"]), server, "lane in.0")
    assert error.code is codes.TARGET_REFUSES
    assert "does not offer EXTERNAL, by which a client certificate says who connects, but AMQPLAIN PLAIN. " in str(
        error
    )
