"""A URL with credentials in it is refused, and no message shows them. Fields are found by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_type_hints

import pytest

from millstream.spec.addresses import without_secrets
from millstream.spec.connectors import SINKS, SOURCES
from millstream.spec.model import value_of
from millstream.spec.models import Spark
from millstream.spec.sinks import Sink
from millstream.spec.sources import Source
from millstream.spec.values import SpecModel

_NAMES = re.compile(r"(?i).*(url|uri|endpoint|address|remote|rest|brokers)")
_SECRET = "s3cret"
_ADDRESSES = (
    *(f"{scheme}://me:{_SECRET}@h:9092/x" for scheme in ("http", "https", "ws", "redis", "rediss", "amqp", "mqtt")),
    *(f"{scheme}://me:{_SECRET}@h:9092/x" for scheme in ("nats", "tls", "sc", "mariadb+pymysql", "SASL_SSL")),
    f"me:{_SECRET}@h:9092",
    f"me:?{_SECRET}@h:9092",
    f"nats://h:1, nats://me:{_SECRET}@h:2",
    f"sc://h:1/;token={_SECRET}",
    f"redis://h:1/?password={_SECRET}",
    f"redis://h:1/?password=a@{_SECRET}",
)


def models() -> Iterator[type[SpecModel]]:
    """All that connectors, functions and Spark have, with the models inside."""
    open_: list[Any] = [Source, Sink, Spark]
    open_ += [registry.load(name).model for registry in (SOURCES, SINKS) for name in registry.names]
    seen: set[type[SpecModel]] = set()
    while open_:
        kind = open_.pop()
        if isinstance(kind, type) and issubclass(kind, SpecModel):
            if kind not in seen:
                seen.add(kind)
                open_ += get_type_hints(kind, include_extras=True).values()
                yield kind
        else:
            open_ += get_args(kind)


@cache
def addresses() -> dict[str, Any]:
    """Fields that name a server, each with its type."""
    return {
        f"{model.__name__}.{field.alias}": get_type_hints(model, include_extras=True)[name]
        for model in models()
        for name, field in model.model_fields.items()
        if _NAMES.fullmatch(field.alias)
    }


def test_the_fields_are_found() -> None:
    found = addresses().keys()
    assert {"HttpSink.url", "KafkaSource.brokers", "ObjectStore.endpoint", "IcebergCatalog.rest"} <= found
    assert {"SchemaRegistry.url", "Spark.remote", "UserSink.address", "SqlSink.url", "NatsSource.url"} <= found


@pytest.mark.parametrize("name", addresses())
def test_a_secret_in_an_address_is_refused_and_not_shown(name: str) -> None:
    kind = addresses()[name]
    for address in _ADDRESSES:
        # Query strings of web servers may hold anything; `validate` has a note for those that look like a secret.
        if re.match(r"(http|ws)s?://", address) and "@" not in address:
            continue
        written: object = [address] if name.endswith("brokers") else address
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # of pydantic, and of what reads without it
            value_of(kind, written)
        said = str(caught.value) + repr(getattr(caught.value, "context", ""))
        assert _SECRET not in said, address


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("redis://h:1/x", "redis://h:1/x"),
        ("redis://me:s3cret@h:1/x", "h:1/x"),
        ("redis://me:s3@cret@h:1/x?a=b", "h:1/x"),
        ("redis://me:s3?cret@h:1/x", "…"),
        ("http://h/?token=a@s3cret", "…"),
        ("http://h/?token=s3cret", "http://h/"),
        ("sc://h:1/;token=s3cret", "sc://h:1/"),
        ("http://h/#s3cret", "http://h/"),
    ],
)
def test_what_a_message_shows_of_an_address(written: str, shown: str) -> None:
    assert without_secrets(written) == shown
