"""Every field of a connector that has a secret takes a reference. The fields are found by their names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from millstream.spec.connectors import SINKS, SOURCES
from millstream.spec.schema import schema_of
from millstream.spec.sources import Source
from millstream.spec.values import SpecModel

_NAMES = re.compile(
    r"(?i).*(password|token|secret|credential|passphrase|nkey|creds).*|(.*(access|account))?key|.*privateKey"
)
NOT_SECRET = {
    "Reference.secret": "is where the secret is",
    "KafkaOauthbearer.tokenEndpointUrl": "is an address, without credentials",
    "Oauth2.tokenEndpointUrl": "is an address, without credentials",
    "SecretKey.key": "names a key of a Kubernetes Secret",
}
"""Fields that only look like one, each with the reason."""


def secret_fields() -> Iterator[tuple[str, str]]:
    """Model and field of each, with its schema."""
    models: list[type[SpecModel]] = [Source]
    models += [registry.load(name).model for registry in (SOURCES, SINKS) for name in registry.names]
    for model in models:
        schema = schema_of(model)
        for name, body in {model.__name__: schema, **schema.get("$defs", {})}.items():
            for field, contents in body.get("properties", {}).items():
                if _NAMES.fullmatch(field) and f"{name}.{field}" not in NOT_SECRET:
                    yield f"{name}.{field}", json.dumps(contents)


@pytest.mark.slow
def test_every_secret_may_stand_outside_the_file() -> None:
    found = dict(secret_fields())
    assert {
        "WebAuth.token",
        "BasicAuth.password",
        "NatsAuth.creds",
        "KafkaSasl.password",
        "SqsSource.secretKey",
    } <= found.keys()
    assert [name for name, contents in found.items() if '"#/$defs/Reference"' not in contents] == []
    # A text or a reference, or nothing but a reference: each has the three places, and Numaflow's notation.
    assert [name for name, contents in found.items() if '"#/$defs/SecretKey"' not in contents] == []
