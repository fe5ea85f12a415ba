"""Which credentials of Kafka go together, and what `validate` notes about them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.spec.loading import load_text
from millstream.spec.problems import SpecError
from millstream_connectors.kafka.settings import KafkaCluster

PASSWORD = {"env": "KAFKA_PASSWORD"}
CLIENT = {"clientId": "orders", "clientSecret": PASSWORD, "tokenEndpointUrl": "https://login.example.org/token"}


def problems(sasl: dict[str, Any]) -> list[tuple[str, str]]:
    """The places and texts of what is wrong with the credentials of a source."""
    source = {"kafka": {"brokers": ["kafka:9092"], "topic": "orders", "sasl": sasl}}
    vertices = [{"name": "in", "source": source}, {"name": "out", "sink": {"log": {}}}]
    spec = {"vertices": vertices, "edges": [{"from": "in", "to": "out"}]}
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
    try:
        load_text(json.dumps({**head, "spec": spec}), "p.yaml")
    except SpecError as error:
        place = "spec.vertices[0].source.kafka."
        return [(problem.path.removeprefix(place), problem.what) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("sasl", "found"),
    [
        ({"mechanism": "PLAIN", "user": "u", "password": PASSWORD}, []),
        ({"mechanism": "OAUTHBEARER", "oauthbearer": CLIENT}, []),
        ({"mechanism": "PLAIN", "user": "u"}, [("sasl", "`password` is missing, which `mechanism: PLAIN` needs")]),
        ({"mechanism": "OAUTHBEARER"}, [("sasl", "`oauthbearer` is missing, which `mechanism: OAUTHBEARER` needs")]),
        (
            {"mechanism": "OAUTHBEARER", "oauthbearer": CLIENT, "user": "u"},
            [("sasl.user", "`user` has no effect with `mechanism: OAUTHBEARER`")],
        ),
        (
            {"mechanism": "SCRAM-SHA-256", "user": "u", "password": PASSWORD, "oauthbearer": CLIENT},
            [("sasl.oauthbearer", "`oauthbearer` has no effect with `mechanism: SCRAM-SHA-256`")],
        ),
        (
            {"mechanism": "OAUTHBEARER", "oauthbearer": {**CLIENT, "extensions": {"a=b": "c"}}},
            [("sasl.oauthbearer.extensions.a=b", "'a=b' is not the name of an extension")],
        ),
        (
            {"mechanism": "OAUTHBEARER", "oauthbearer": {**CLIENT, "extensions": {"a": "b,c=d"}}},
            [("sasl.oauthbearer.extensions.a", "'b,c=d' is not the value of an extension")],
        ),
        (
            {"mechanism": "OAUTHBEARER", "oauthbearer": {**CLIENT, "tokenEndpointUrl": "http://me:s3cret@login/t"}},
            [("sasl.oauthbearer.tokenEndpointUrl", "'login/t' is not the address of a token endpoint")],
        ),
        (
            {
                "mechanism": "OAUTHBEARER",
                "oauthbearer": {**CLIENT, "tokenEndpointUrl": "http://localhost/t", "ca": PASSWORD},
            },
            [("sasl.oauthbearer.ca", "`ca` has no effect on an `http://` address")],
        ),
    ],
)
def test_a_mechanism_needs_its_own_credentials(sasl: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert problems(sasl) == found


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ({"tls": {}}, []),
        ({}, ["the token is sent to the brokers unencrypted"]),
        ({"address": "http://localhost/t", "tls": {}}, []),
        ({"address": "http://login.example.org/t", "tls": {}}, ["the client's secret is sent over the network"]),
    ],
)
def test_what_is_sent_unencrypted_is_noted(changes: dict[str, Any], noted: list[str]) -> None:
    client = {**CLIENT, "tokenEndpointUrl": changes.pop("address", CLIENT["tokenEndpointUrl"])}
    sasl = {"mechanism": "OAUTHBEARER", "oauthbearer": client}
    cluster = KafkaCluster.model_validate({"brokers": ["kafka:9092"], "sasl": sasl, **changes})
    found = [text for _, text in cluster.notes(())]
    assert len(found) == len(noted)
    assert all(text.startswith(beginning) for text, beginning in zip(found, noted, strict=True))
