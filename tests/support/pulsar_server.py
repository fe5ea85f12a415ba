"""A real Pulsar for tests: a broker and a bookie in one process on the loopback, with TLS beside, and kills as its API.

Above it: tests. Below it: Java, and the jars that `make servers` fetches. It deletes ledgers a second after they are no
longer needed, and begins a new one after a few entries, or at once when a topic is unloaded.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pulsar

from millstream.ports import free_ports
from millstream.wire.certificates import make_certificate
from tests.support.server_process import ServerProcess, started_server

LIBRARIES = Path(__file__).parents[2] / ".cache" / "servers" / "pulsar"
ANSWER_TIMEOUT_S = 180.0
EXACT, BRIEF = "public/exact", "public/brief"
"""Namespaces: one whose messages are deduplicated, and one that keeps only what a subscription has not acknowledged."""
LEDGER_ENTRIES = 25
USER, PASSWORD = "shop", "a long, secret word"
"""Who may connect by user and password; the role has the user's name."""
ADMIN = "admin"
"""A role that may do everything."""
_PROVIDERS = ",".join(
    f"org.apache.pulsar.broker.authentication.AuthenticationProvider{kind}" for kind in ("Token", "Basic", "Tls")
)
_JAVA = [
    "-Xms128m",
    "-Xmx384m",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dorg.apache.pulsar.allocator.exit_on_oom=true",
    *(
        option
        for name in ("java.lang", "java.util.zip", "java.nio", "jdk.internal.loader", "jdk.internal.misc")
        for option in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")
    ),
    "--add-opens",
    "java.management/sun.management=ALL-UNNAMED",
    "--add-opens",
    "jdk.management/com.sun.management.internal=ALL-UNNAMED",
]
_SETTINGS = """\
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort={port}
webServicePort={web}
allowAutoTopicCreation=false
brokerDeleteInactiveTopicsEnabled=false
brokerDeduplicationEntriesInterval=10
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerMaxEntriesPerLedger={entries}
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerCacheSizeMB=16
retentionCheckIntervalInSeconds=1
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
loadBalancerEnabled=false
topicLevelPoliciesEnabled=true
systemTopicEnabled=true
transactionCoordinatorEnabled=false
webSocketServiceEnabled=false
dbStorage_writeCacheMaxSizeMb=16
dbStorage_readAheadCacheMaxSizeMb=16
dbStorage_rocksDB_blockCacheSize=8388608
nettyMaxFrameSizeBytes=5253120
diskUsageThreshold=0.999
diskUsageWarnThreshold=0.998
numIOThreads=2
numHttpServerThreads=8
authenticationEnabled=true
authenticationProviders={providers}
tokenSecretKey=data:;base64,{secret}
basicAuthConf=data:;base64,{users}
authenticationRefreshCheckSeconds=1
authorizationEnabled=true
anonymousUserRole=everyone
superUserRoles=everyone,{admin}
brokerServicePortTls={tls}
tlsCertificateFilePath={certificate}
tlsKeyFilePath={key}
tlsTrustCertsFilePath={trusted}
"""
_LOGGING = """\
<Configuration status="error">
  <Appenders><Console name="c"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="c"/></Root></Loggers>
</Configuration>
"""


def why_missing() -> str:
    """Why no server can be started here; empty when one can."""
    if shutil.which("java") is None:
        return "Pulsar needs Java, which is not installed"
    return "" if LIBRARIES.is_dir() else "`make servers` fetches Pulsar, and has not"


class PulsarServer(ServerProcess):
    """A broker, with its storage."""

    name = "Pulsar"
    start_timeout_s = 400.0

    def __init__(self, directory: Path, ledger_entries: int = LEDGER_ENTRIES) -> None:
        super().__init__(directory)
        self._ledger_entries = ledger_entries
        self._port = free_ports(3)
        self._secret = os.urandom(32)
        self._bookie = free_ports()
        self._client: pulsar.Client | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """In a pipeline file."""
        return {"serverAddr": f"pulsar://127.0.0.1:{self._port}"}

    @property
    def tls_settings(self) -> dict[str, Any]:
        """The same, encrypted."""
        tls = {"ca": {"file": str(self.directory / "server.pem")}}
        return {"serverAddr": f"pulsar+ssl://127.0.0.1:{self._port + 2}", "tls": tls}

    @property
    def certificate_settings(self) -> dict[str, Any]:
        """The same, with a certificate of the user `USER`."""
        settings = self.tls_settings
        own = {
            name: {"file": str(self.directory / f"client.{end}")}
            for name, end in (("certificate", "pem"), ("key", "key"))
        }
        return {**settings, "tls": {**settings["tls"], **own}}

    def token(self, role: str, lifetime_s: float | None = None) -> str:
        """A JSON Web Token. Who connects without one may do everything; a role, what it was granted. `lifetime_s`: None
        if it does not expire."""
        claims = {"sub": role} if lifetime_s is None else {"sub": role, "exp": int(time.time() + lifetime_s)}
        parts = [json.dumps({"alg": "HS256"}).encode(), json.dumps(claims).encode()]
        signed = b".".join(map(_base64url, parts))
        return (signed + b"." + _base64url(hmac.digest(self._secret, signed, "sha256"))).decode()

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._port + 1}"

    def make(self) -> None:
        """The files of a server that has nothing."""
        made = make_certificate(self.directory)
        known = make_certificate(self.directory, USER, "client")
        ports = {"port": self._port, "web": self._port + 1, "tls": self._port + 2}
        secret = base64.b64encode(self._secret).decode()
        files = {"certificate": made.certificate, "key": made.key, "trusted": known.certificate}
        hashing = ["openssl", "passwd", "-apr1", PASSWORD]
        hashed = subprocess.run(hashing, capture_output=True, text=True, check=True).stdout.strip()
        users = base64.b64encode(f"{USER}:{hashed}\n".encode()).decode()
        who = {"providers": _PROVIDERS, "secret": secret, "users": users, "admin": ADMIN}
        text = _SETTINGS.format(**ports, **files, **who, entries=self._ledger_entries)
        (self.directory / "standalone.conf").write_text(text)
        (self.directory / "log4j2.xml").write_text(_LOGGING)

    def start(self) -> None:
        """Returns when it answers."""
        home = self.directory
        command = [
            *("java", *_JAVA, f"-Dlog4j.configurationFile={home}/log4j2.xml", f"-Djava.io.tmpdir={home}"),
            *("-cp", f"{LIBRARIES}{os.sep}*", "org.apache.pulsar.PulsarStandaloneStarter"),
            *("--config", f"{home}/standalone.conf", "--metadata-dir", f"{home}/metadata"),
            *("--bookkeeper-dir", f"{home}/bookkeeper", "--bookkeeper-port", str(self._bookie)),
            *("--no-functions-worker", "--no-stream-storage", "--advertised-address", "127.0.0.1"),
        ]
        self._run(command)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It keeps its connections, and does not answer."""
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def close(self) -> None:
        """End the client of the tests."""
        if self._client is not None:
            self._client.shutdown()
            self._client = None

    def topic(self, partitions: int = 0, namespace: str = "public/default", ending: str = "") -> str:
        """A new one, by its full name."""
        name = f"{namespace}/t-{uuid4()}{ending}"
        if partitions:
            self.ask("PUT", f"persistent/{quote(name)}/partitions", partitions)
        else:
            self.ask("PUT", f"persistent/{quote(name)}")
        return f"persistent://{name}"

    def send(self, topic: str, values: Sequence[bytes], **of_each: Any) -> None:
        """Publish messages, and wait until they are stored. `of_each`: what `Producer.send` takes besides."""
        producer = self.client.create_producer(topic, max_pending_messages=len(values) + 1)
        failed: list[pulsar.Result] = []
        for value in values:
            producer.send_async(
                value, lambda result, _: None if result == pulsar.Result.Ok else failed.append(result), **of_each
            )
        producer.flush()
        producer.close()
        assert not failed, failed

    def send_batch(self, topic: str, values: Sequence[bytes]) -> None:
        """Publish messages as one entry."""
        producer = self.client.create_producer(
            topic, batching_enabled=True, batching_max_messages=len(values), batching_max_publish_delay_ms=60_000
        )
        for value in values:
            producer.send_async(value, lambda _, __: None)
        producer.flush()
        producer.close()

    def send_in_chunks(self, topic: str, value: bytes) -> None:
        """Publish a message that is too large for one entry."""
        producer = self.client.create_producer(topic, chunking_enabled=True)
        producer.send(value)
        producer.close()

    def skip_of_readers(self, topic: str, count: int) -> int:
        """Move all readers of a topic on by some messages. Returns their number."""
        readers = [
            name
            for name, one in self.ask("GET", f"{_path(topic)}/stats")["subscriptions"].items()
            if not one["isDurable"]
        ]
        for name in readers:
            self.ask("POST", f"{_path(topic)}/subscription/{name}/skip/{count}")
        return len(readers)

    def messages(self, topic: str) -> list[pulsar.Message]:
        """All that are in the topic, one partition after the other."""
        found = []
        for partition in self.client.get_topic_partitions(topic):
            reader = self.client.create_reader(partition, pulsar.MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next(int(ANSWER_TIMEOUT_S * 1000)))
            reader.close()
        return found

    def values(self, topic: str) -> list[bytes]:
        """The same, values alone."""
        return [message.data() for message in self.messages(topic)]

    def new_ledger(self, topic: str) -> None:
        """Close the topic; it begins with a new ledger when it is used again."""
        self.ask("PUT", f"{_path(topic)}/unload")

    async def deduplicate(self, topic: str, enabled: bool) -> None:
        """Enable or disable deduplication of a topic, and wait until it applies."""
        path = f"{_path(topic)}/deduplicationEnabled"
        self.ask("POST", path, enabled)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while (  # noqa: ASYNC110 - the server sends no event of it
                self.ask("GET", f"{path}?applied=true") is not enabled
                or (self.ask("GET", f"{_path(topic)}/stats")["deduplicationStatus"] == "Enabled") is not enabled
            ):
                await asyncio.sleep(0.05)

    def forget_read(self, topic: str) -> None:
        """Delete all ledgers that no subscription needs, and wait until they are gone."""
        self.new_ledger(topic)
        self.send(topic, [b"after the rest"])
        self.ask("POST", f"{_path(topic)}/trim")

    def remove_unread(self, topic: str, subscription: str) -> None:
        """Move the subscription to the end, as an expiry does, and wait until Pulsar has deleted what was before."""
        first = self.ledgers(topic)[0]
        self.ask("POST", f"{_path(topic)}/subscription/{subscription}/skip_all")
        self.forget_read(topic)
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while first in self.ledgers(topic):
            assert self._process is not None
            assert time.monotonic() < deadline_s, f"ledger {first} was not deleted"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def ledgers(self, topic: str) -> list[int]:
        """The ids of those that are left."""
        found = self.ask("GET", f"{_path(topic)}/internalStats")["ledgers"]
        return [ledger["ledgerId"] for ledger in found]

    def backlog(self, topic: str, subscription: str) -> int:
        """Entries that the subscription has not acknowledged."""
        found: Mapping[str, Any] = self.ask("GET", f"{_path(topic)}/stats")["subscriptions"]
        return int(found[subscription]["msgBacklog"])

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request to the web service. Raises `urllib.error.HTTPError`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            text = answer.read()
        return "ok" if text == b"ok" else json.loads(text) if text else None

    @property
    def client(self) -> pulsar.Client:
        if self._client is None:
            logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
            self._client = pulsar.Client(self.settings["serverAddr"], logger=logger)
        return self._client

    def _answers(self) -> bool:
        """Whether it serves topics; makes the namespaces, which the first start has not."""
        with suppress(OSError, ValueError):
            if BRIEF not in self.ask("GET", "namespaces/public"):
                self.ask("PUT", f"namespaces/{EXACT}")
                self.ask("POST", f"namespaces/{EXACT}/deduplication", True)
                self.ask("PUT", f"namespaces/{BRIEF}")
                nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
                self.ask("POST", f"namespaces/{BRIEF}/retention", nothing)
            return bool(self.ask("GET", "brokers/health") == "ok")
        return False


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _path(topic: str) -> str:
    return topic.replace("://", "/")


@contextmanager
def open_pulsar(ledger_entries: int = LEDGER_ENTRIES) -> Iterator[PulsarServer]:
    """A server of one's own, killed at the end, with its files. `ledger_entries`: entries after which a new ledger
    begins."""
    directory = Path(tempfile.mkdtemp(prefix="millstream-pulsar-"))
    try:
        server = PulsarServer(directory, ledger_entries)
        server.make()
        with started_server(server), closing(server):
            yield server
    finally:
        shutil.rmtree(directory)
