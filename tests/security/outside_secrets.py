"""Pipelines that reach each kind of server with a secret: it is in a file, and the pipeline file refers to it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, quote_plus
from uuid import uuid4

import pyarrow as pa
import pytest
from aiohttp import ClientSession, web
from pyiceberg.catalog.rest import RestCatalog

from tests.nats_process import open_nats_process
from tests.support import (
    azure_server,
    mariadb_server,
    mqtt_broker,
    object_server,
    postgres_server,
    rabbit_server,
    token_endpoint,
    token_issuer,
)
from tests.support.nats_outside import open_outside_nats
from tests.support.nats_users import signed_user
from tests.support.registry_server import open_registry_server
from tests.support.token_endpoint import open_token_endpoint
from tests.support.token_issuer import open_token_issuer
from tests.support.web_server import HANDLERS, TOKEN, open_web

if TYPE_CHECKING:
    from tests.support.azure_server import AzureServer
    from tests.support.kafka_server import KafkaServer
    from tests.support.mariadb_server import MariaServer
    from tests.support.mqtt_broker import MqttServer
    from tests.support.object_server import Bucket, ObjectServer
    from tests.support.opensearch_server import OpenSearchServer
    from tests.support.postgres_server import PostgresServer
    from tests.support.pubsub_server import PubsubServer
    from tests.support.pulsar_server import PulsarServer
    from tests.support.rabbit_server import RabbitServer
    from tests.support.redis_server import RedisServer
    from tests.support.sqs_server import SqsServer

SECRET = {"secret": {"name": "outside", "key": "password"}}
"""The reference of the settings."""
HOOK = "hook-0d1f s3cret"
SCHEMA = json.dumps({"type": "record", "name": "N", "fields": [{"name": "number", "type": "long"}]})


@dataclass
class Outside:
    """What a pipeline reaches with one secret."""

    secret: str
    sinks: Mapping[str, dict[str, Any]]
    """By the name of the vertex."""
    sources: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    """With whom the secret may be encoded together."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further keys of the Kubernetes Secret `outside`."""
    parts: tuple[str, ...] = ()
    """What is secret in them."""
    wrong: str = "wr0ng s3cret/+?"
    """A secret of the same form that is not the right one."""

    def write(self, directory: Path, secret: str | None = None) -> None:
        """The pipeline file, and the mounted Secret. `secret`: another one than the right one."""
        vertices: list[dict[str, Any]] = [
            {"name": "in", "source": {"file": {"paths": ["in.jsonl"], "format": "jsonl", "follow": True}}},
            *({"name": name, "sink": sink} for name, sink in self.sinks.items()),
            *({"name": name, "source": source} for name, source in self.sources.items()),
            *({"name": f"{name}-end", "sink": {"blackhole": {}}} for name in self.sources),
        ]
        edges = [{"from": "in", "to": name} for name in self.sinks]
        edges += [{"from": name, "to": f"{name}-end"} for name in self.sources]
        spec = {"vertices": vertices, "edges": edges}
        head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
        (directory / "pipeline.yaml").write_text(json.dumps({**head, "spec": spec}, indent=1))
        (directory / "in.jsonl").write_text("")
        mounted = directory / "mounted" / "outside"
        mounted.mkdir(parents=True, exist_ok=True)
        for key, value in {"password": secret or self.secret, **self.more}.items():
            (mounted / key).write_text(value)
            (mounted / key).chmod(0o600)

    def forms(self, *secrets: str) -> set[bytes]:
        """How a secret may be written: as it is, in a URL, in JSON, and encoded for a header."""
        found = set()
        for secret in (self.secret, *self.parts, *secrets):
            texts = (secret, *(f"{user}:{secret}" for user in self.users))
            found |= {quote(secret), quote_plus(secret), json.dumps(secret)[1:-1], secret}
            found |= {base64.b64encode(text.encode()).decode().rstrip("=") for text in texts}
        return {form.encode() for form in found}


Life = AsyncExitStack
Maker = Callable[[pytest.FixtureRequest, Path, Life], Awaitable[Outside]]


async def _kafka(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: KafkaServer = request.getfixturevalue("kafka")
    from tests.support import kafka_server, registry_server

    registry = await life.enter_async_context(open_registry_server())
    registry.closed = True
    topic = await asyncio.to_thread(server.create, str(uuid4()))
    assert kafka_server.PASSWORD == registry_server.PASSWORD
    sasl = {"mechanism": "PLAIN", "user": kafka_server.USER, "password": SECRET}
    settings = {"brokers": [server.sasl_brokers], "topic": topic, "sasl": sasl, "timeout": "5s"}
    encoded = {
        "encoding": "avro",
        "registry": {"url": registry.url, "user": registry_server.USER, "password": SECRET, "timeout": "1s"},
    }
    return Outside(
        kafka_server.PASSWORD,
        {"out": {"kafka": settings, "format": {**encoded, "schema": SCHEMA, "autoRegister": True}}},
        {"back": {"kafka": {**settings, "start": "earliest"}, "format": encoded}},
        users=(kafka_server.USER, registry_server.USER),
    )


async def _kafka_oauth(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """The endpoint repeats what it refuses."""
    server: KafkaServer = request.getfixturevalue("kafka")
    topic = await asyncio.to_thread(server.create, str(uuid4()))
    endpoint = life.enter_context(open_token_endpoint())
    client = {"clientId": token_endpoint.CLIENT, "clientSecret": SECRET, "tokenEndpointUrl": endpoint.url}
    sasl = {"mechanism": "OAUTHBEARER", "oauthbearer": client}
    settings = {"brokers": [server.sasl_brokers], "topic": topic, "sasl": sasl, "timeout": "5s"}
    return Outside(
        token_endpoint.SECRET,
        {"out": {"kafka": settings}},
        {"back": {"kafka": {**settings, "start": "earliest"}}},
        users=(token_endpoint.CLIENT,),
    )


async def _postgres(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: PostgresServer = request.getfixturevalue("postgres")
    database = await server.database()
    role = postgres_server.LOCKED
    await database.execute(
        postgres_server.ROLE,
        "CREATE TABLE t (number bigint PRIMARY KEY)",
        f"GRANT ALL ON SCHEMA public TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
    )
    settings = {**database.settings, "user": role, "password": SECRET, "timeout": "5s"}
    return Outside(
        postgres_server.PASSWORD,
        {"out": {"postgres": {**settings, "table": "t", "columns": [{"name": "number"}]}}},
        {"back": {"postgres": {**settings, "query": "SELECT number FROM t", "cursor": ["number"]}}},
        users=(role,),
    )


async def _mariadb(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: MariaServer = request.getfixturevalue("mariadb")
    database = server.database()
    database.execute(
        "CREATE TABLE t (number bigint PRIMARY KEY)",
        f"GRANT ALL ON {database.name}.* TO {mariadb_server.LOCKED}@'127.0.0.1'",
    )
    settings = {"url": database.url, "user": mariadb_server.LOCKED, "password": SECRET, "timeout": "5s"}
    return Outside(
        mariadb_server.PASSWORD,
        {"out": {"sql": {**settings, "table": "t", "columns": [{"name": "number", "type": "bigint"}]}}},
        users=(mariadb_server.LOCKED,),
    )


async def _redis(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: RedisServer = request.getfixturevalue("redis")
    settings = {"url": server.settings["url"], "password": SECRET, "stream": str(uuid4()), "timeout": "5s"}
    return Outside(
        server.password, {"out": {"redisStreams": settings}}, {"back": {"redisStreams": settings}}, users=("default",)
    )


async def _rabbit(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: RabbitServer = request.getfixturevalue("rabbit")
    queue = await asyncio.to_thread(server.queue)
    settings = {**server.settings, "user": rabbit_server.WRITER, "password": SECRET, "timeout": "5s"}
    return Outside(
        rabbit_server.PASSWORD,
        {"out": {"rabbitmq": {**settings, "routingKey": queue}}},
        {"back": {"rabbitmq": {**settings, "queue": queue}}},
        users=(rabbit_server.WRITER,),
    )


async def _pulsar(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    from tests.support import pulsar_server

    server: PulsarServer = request.getfixturevalue("pulsar")
    topic = await asyncio.to_thread(server.topic, namespace=pulsar_server.EXACT)
    permissions = f"{topic.replace('://', '/')}/permissions/{pulsar_server.USER}"
    await asyncio.to_thread(server.ask, "POST", permissions, ["produce", "consume"])
    auth = {"basic": {"user": pulsar_server.USER, "password": SECRET}}
    settings = {**server.settings, "auth": auth, "topic": topic, "timeout": "5s"}
    return Outside(
        pulsar_server.PASSWORD,
        {"out": {"pulsar": settings}},
        {"back": {"pulsar": {**settings, "subscriptionName": "back"}}},
        users=(pulsar_server.USER,),
    )


async def _pulsar_oauth2(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """The tokens that the issuer gives are secrets, too."""
    from tests.support import pulsar_server

    server: PulsarServer = request.getfixturevalue("pulsar")
    topic = await asyncio.to_thread(server.topic, namespace=pulsar_server.EXACT)
    token = server.token(pulsar_server.ADMIN)
    issuer = await life.enter_async_context(open_token_issuer(lambda *_: token))
    issuer.echoes = True
    auth = {"oauth2": {**issuer.settings, "clientId": token_issuer.CLIENT_ID, "clientSecret": SECRET}}
    settings = {**server.settings, "auth": auth, "topic": topic, "timeout": "5s"}
    file = {"oauth2": {**issuer.settings, "privateKey": {"secret": {"name": "outside", "key": "file"}}}}
    return Outside(
        token_issuer.CLIENT_SECRET,
        {"out": {"pulsar": {**settings, "adminUrl": server.admin_url}}},
        {"back": {"pulsar": {**settings, "auth": file, "subscriptionName": "back"}}},
        more={"file": issuer.key_file},
        parts=(token,),
    )


async def _mqtt(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: MqttServer = request.getfixturevalue("mqtt")
    settings = {**server.settings, "password": SECRET, "topic": server.topic(), "timeout": "5s"}
    return Outside(
        mqtt_broker.PASSWORD,
        {"out": {"mqtt": settings}},
        {"back": {"mqtt": {**settings, "session": str(uuid4())}}},
        users=(mqtt_broker.USER,),
    )


async def _sqs(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: SqsServer = request.getfixturevalue("sqs")
    queue = await asyncio.to_thread(server.queue)
    settings = {**server.settings(queue), "secretKey": SECRET, "timeout": "5s"}
    return Outside(server.key[1], {"out": {"sqs": settings}}, {"back": {"sqs": settings}}, users=(server.key[0],))


async def _objects(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server: ObjectServer = request.getfixturevalue("objects")
    bucket = await asyncio.to_thread(server.bucket)
    store = {**server.settings, "secretKey": SECRET, "timeout": "5s"}
    columns = [{"name": "number", "type": "int"}]
    return Outside(
        object_server.SECRET,
        {
            "out": {"file": {"path": bucket.url("out"), "store": store, "rolling": {"maxAge": "200ms"}}},
            "delta": {"delta": {"path": bucket.url("delta"), "store": store, "columns": columns}},
        },
        {"back": {"file": {"paths": [bucket.url("out/*")], "store": store, "follow": True}}},
        users=(object_server.KEY,),
    )


async def _signature(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """A shared access signature for Azure."""
    server: AzureServer = request.getfixturevalue("azure")
    bucket = await asyncio.to_thread(server.bucket)
    signature = server.signature("rwdlc")
    digest, other = parse_qs(signature)["sig"][0], base64.b64encode(b"another digest of a signature").decode()
    store = {"endpoint": server.endpoint, "account": azure_server.ACCOUNT, "sasToken": SECRET, "timeout": "5s"}
    return Outside(
        signature,
        {"out": {"file": {"path": bucket.url("out"), "store": store, "rolling": {"maxAge": "200ms"}}}},
        {"back": {"file": {"paths": [bucket.url("out/*")], "store": store, "follow": True}}},
        parts=(digest, other),
        wrong=signature.replace(quote_plus(digest), quote_plus(other)),
    )


async def _credentials(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """A user's JWT and seed for NATS."""
    nkeys = pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    conf, credentials = signed_user(nkeys)
    _, wrong = signed_user(nkeys)
    server = await life.enter_async_context(open_nats_process(directory / "nats", conf))
    settings = {"url": server.url, "subject": "news", "auth": {"creds": SECRET}, "timeout": "5s"}
    lines = [line for text in (credentials, wrong) for line in text.splitlines() if line and "-----" not in line]
    return Outside(
        credentials, {"out": {"nats": settings}}, {"live": {"nats": settings}}, parts=tuple(lines), wrong=wrong
    )


async def _jetstream(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    server = await life.enter_async_context(open_outside_nats(directory / "nats"))
    await server.create("orders")
    access = server.server.access
    assert access.password is not None
    settings = {"url": access.url, "auth": {"basic": {"user": access.user, "password": SECRET}}, "timeout": "5s"}
    return Outside(
        access.password,
        {
            "out": {"jetstream": {**settings, "subject": "orders.new"}},
            "plain": {"nats": {**settings, "subject": "news"}},
        },
        {
            "back": {"jetstream": {**settings, "stream": "orders"}},
            "live": {"nats": {**settings, "subject": "news"}},
        },
        users=(str(access.user),),
    )


async def _iceberg(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """In a bucket, with a catalog server; the secret is that of the catalog."""
    server: ObjectServer = request.getfixturevalue("objects")
    bucket = await asyncio.to_thread(server.table_bucket)
    store = {**server.settings, "secretKey": {"secret": {"name": "outside", "key": "store"}}, "timeout": "5s"}
    catalog = {"rest": server.iceberg, "warehouse": bucket.url().rstrip("/"), "credential": SECRET}
    settings = {"catalog": catalog, "table": "shop.numbers", "store": store}
    columns = [{"name": "number", "type": "int"}]
    await asyncio.to_thread(_iceberg_table, server, bucket)
    return Outside(
        server.credential,
        {"out": {"iceberg": {**settings, "columns": columns, "commitEvery": "200ms"}}},
        {"back": {"iceberg": {**settings, "follow": True, "pollEvery": "100ms"}}},
        more={"store": object_server.SECRET},
        parts=(object_server.SECRET,),
    )


def _iceberg_table(server: ObjectServer, bucket: Bucket) -> None:
    named = {"endpoint": "s3.endpoint", "region": "s3.region", "accessKey": "s3.access-key-id"}
    files = {name: server.settings[ours] for ours, name in named.items()}
    files |= {"s3.secret-access-key": object_server.SECRET, "oauth2-server-uri": f"{server.iceberg}/v1/oauth/tokens"}
    warehouse = bucket.url().rstrip("/")
    with closing(
        RestCatalog("default", uri=server.iceberg, warehouse=warehouse, credential=server.credential, **files)
    ) as catalog:
        catalog.create_namespace("shop")
        catalog.create_table("shop.numbers", pa.schema({"number": pa.int64()}))


async def _pubsub(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """The secret is the key of a service account, with which the emulator is reached by TLS."""
    server: PubsubServer = request.getfixturevalue("pubsub")
    if not server.certificate.exists():
        pytest.skip("openssl, which makes certificates, is not installed")
    request.getfixturevalue("monkeypatch").setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(server.certificate))
    queue = await asyncio.to_thread(server.queue)
    key = server.account()
    private = json.loads(key)["private_key"].splitlines()
    reached = {"endpoint": server.tls_endpoint, "credentials": SECRET, "timeout": "5s"}
    return Outside(
        key,
        {"out": {"pubsub": {**server.sink(queue), **reached}}},
        {"back": {"pubsub": {**server.source(queue), **reached}}},
        parts=(private[1], private[len(private) // 2]),
    )


async def _opensearch(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """Behind a proxy that asks who it is, because the server of the tests does not."""
    server: OpenSearchServer = request.getfixturevalue("opensearch")
    password = "s3cret of an index/+?"
    known = "Basic " + base64.b64encode(f"searcher:{password}".encode()).decode()

    async def passed(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != known:
            return web.Response(status=401, text=f"not {request.headers.get('Authorization')}")
        headers = {name: text for name, text in request.headers.items() if name in ("Content-Type", "Content-Encoding")}
        url = server.settings["url"] + request.path_qs
        async with session.request(request.method, url, data=await request.read(), headers=headers) as answer:
            return web.json_response(body=await answer.read(), status=answer.status)

    session = await life.enter_async_context(ClientSession())
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", passed)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    life.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    auth = {"basic": {"user": "searcher", "password": SECRET}}
    settings = {"url": url, "auth": auth, "timeout": "5s", "index": server.index()}
    return Outside(password, {"out": {"opensearch": settings}}, users=("searcher",))


async def _web(request: pytest.FixtureRequest, directory: Path, life: Life) -> Outside:
    """The URL of the sink is a secret, too."""

    async def taken(request: web.Request) -> web.Response:
        known = request.headers.get("Authorization") == f"Bearer {TOKEN}"
        return web.Response(status=200 if known else 401, text=f"not {request.headers.get('Authorization')}")

    address = await life.enter_async_context(open_web(HANDLERS))
    hooks = web.Application()
    hooks.router.add_post("/{hook}", taken)
    runner = web.AppRunner(hooks, shutdown_timeout=0.1)
    await runner.setup()
    life.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/{quote(HOOK)}"
    shared = {"auth": {"token": SECRET}, "timeout": "5s"}
    at = f"http://{address}/closed"
    return Outside(
        TOKEN,
        {"out": {"http": {"url": {"secret": {"name": "outside", "key": "hook"}}, **shared}}},
        {
            "poll": {"httpPoll": {"url": f"{at}/items", "records": "items", "interval": "100ms", **shared}},
            "events": {"sse": {"url": f"{at}/events?live", **shared}},
            "socket": {"websocket": {"url": f"ws://{address}/closed/ticks", **shared}},
        },
        more={"hook": url},
        parts=(HOOK,),
    )


KINDS: Mapping[str, Maker] = {
    "kafka": _kafka,
    "kafka-oauth": _kafka_oauth,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "redis": _redis,
    "rabbitmq": _rabbit,
    "pulsar": _pulsar,
    "pulsar-oauth2": _pulsar_oauth2,
    "mqtt": _mqtt,
    "sqs": _sqs,
    "objects": _objects,
    "azure-signature": _signature,
    "iceberg": _iceberg,
    "pubsub": _pubsub,
    "opensearch": _opensearch,
    "jetstream": _jetstream,
    "nats-credentials": _credentials,
    "web": _web,
}


@asynccontextmanager
async def open_outside(kind: str, request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Outside]:
    """The servers of a kind; skips the test where one cannot be started."""
    async with AsyncExitStack() as life:
        yield await KINDS[kind](request, directory, life)
