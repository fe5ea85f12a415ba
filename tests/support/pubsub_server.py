"""A server that emulates Pub/Sub, for tests: Google's fake for Go, as a process on the loopback.

Its topics are in memory: they are gone when it is killed, so it can be paused and not killed. It takes everything at
`endpoint`. Where openssl is, it also speaks TLS at `tls_endpoint`, and takes there only what an account has signed.

Above it: tests. Below it: the program that `make servers` built, and a client.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4

import grpc
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import PullRequest

from millstream.ports import free_ports
from tests.support.server_process import START_TIMEOUT_S, ServerProcess, listens, started_server

PROGRAM = Path(__file__).parents[2] / ".cache" / "servers" / "pubsub" / "pubsub"
PROJECT = "test-project"
ACCOUNT = f"shop@{PROJECT}.iam.gserviceaccount.com"
DATA_ONLY = f"data-only-{ACCOUNT}"
"""May publish and pull, and not look at topics and subscriptions."""
LEASE_S = 3
"""Of a subscription: when it hands out again what a reader took that sets no lease of its own."""


def why_missing() -> str:
    """Why no server can be started here; empty when one can."""
    return "" if PROGRAM.is_file() else "`make servers` builds Google's emulator of Pub/Sub with Go, and has not"


class Queue(NamedTuple):
    """A topic with one subscription."""

    topic: str
    subscription: str


class PubsubServer(ServerProcess):
    """Made by `open_pubsub`. It forgets its topics when it is killed."""

    name = "the emulator"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port, self.tls_port = free_ports(), free_ports()
        self.certificate = directory / "server.crt"
        """Of the server, and of its authority; there where openssl is."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def tls_endpoint(self) -> str:
        return f"https://127.0.0.1:{self.tls_port}"

    @property
    def settings(self) -> dict[str, str]:
        """How pipeline files name it."""
        return {"project": PROJECT, "endpoint": self.endpoint}

    def account(self, email: str = ACCOUNT, *, key: str | None = None) -> str:
        """The JSON key of an account, signed with the server's key unless another one is given."""
        return json.dumps(
            {
                "type": "service_account",
                "project_id": PROJECT,
                "private_key_id": "1",
                "private_key": key or (self.directory / "server.key").read_text(),
                "client_email": email,
                "client_id": "1",
                "token_uri": "https://127.0.0.1:1/token",
            }
        )

    def start(self) -> None:
        """Returns when it takes requests."""
        command = [str(PROGRAM), f"127.0.0.1:{self.port}"]
        self._ports = [self.port]
        if shutil.which("openssl") is not None:
            key = self.directory / "server.key"
            subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
            files = ["-keyout", str(key), "-out", str(self.certificate)]
            make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
            subprocess.run(make, check=True, capture_output=True, timeout=60)
            command += [f"127.0.0.1:{self.tls_port}", str(self.certificate), str(key), ACCOUNT]
            self._ports.append(self.tls_port)
        self._run(command)
        self._channel = channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))

    def kill(self) -> None:
        if self._process is not None:
            super().kill()
            self._channel.close()

    def _answers(self) -> bool:
        return all(map(listens, self._ports))

    # What tests do there

    def queue(self, *, ordered: bool = False) -> Queue:
        """A new one."""
        name = f"q{uuid4()}"
        queue = Queue(f"projects/{PROJECT}/topics/{name}", f"projects/{PROJECT}/subscriptions/{name}")
        self._publisher.create_topic(name=queue.topic)
        self._subscriber.create_subscription(
            request={
                "name": queue.subscription,
                "topic": queue.topic,
                "ack_deadline_seconds": LEASE_S,
                "enable_message_ordering": ordered,
            }
        )
        return queue

    def source(self, queue: Queue) -> dict[str, str]:
        """How a source names it."""
        return {**self.settings, "subscription": queue.subscription.rpartition("/")[2]}

    def sink(self, queue: Queue) -> dict[str, str]:
        """How a sink names it."""
        return {**self.settings, "topic": queue.topic.rpartition("/")[2]}

    def send(self, queue: Queue, values: Sequence[bytes], *, key: str = "", **attributes: str) -> None:
        """Messages, in order."""
        messages = [{"data": value, "attributes": attributes, "ordering_key": key} for value in values]
        self._publisher.publish(request={"topic": queue.topic, "messages": messages})

    def left(self, queue: Queue) -> int:
        """Messages that are in no reader's hands. It takes them, and puts them back."""
        return self._left(queue, wait=False)

    def until_left(self, queue: Queue, count: int) -> None:
        """Until there are so many."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while (left := self._left(queue, wait=True)) != count:
            assert time.monotonic() < deadline_s, f"{left} messages are left, not {count}"

    def _left(self, queue: Queue, *, wait: bool) -> int:
        messages = self._pull(queue, wait=wait)
        if messages:
            self._subscriber.modify_ack_deadline(
                request={
                    "subscription": queue.subscription,
                    "ack_ids": [message.ack_id for message in messages],
                    "ack_deadline_seconds": 0,
                }
            )
        return len(messages)

    def taken(self, queue: Queue) -> list[Any]:
        """All messages of a queue, which they leave."""
        found: list[Any] = []
        while messages := self._pull(queue):
            found += [message.message for message in messages]
            ids = [message.ack_id for message in messages]
            self._subscriber.acknowledge(request={"subscription": queue.subscription, "ack_ids": ids})
        return found

    def _pull(self, queue: Queue, *, wait: bool = False) -> list[Any]:
        """`wait`: half a second, where there are none."""
        request = PullRequest(subscription=queue.subscription, max_messages=1000, return_immediately=not wait)
        # The client warns of a request that does not wait, which is what is needed here.
        answer: Any = self._subscriber.transport.pull(request)
        return list(answer.received_messages)


@contextmanager
def open_pubsub() -> Iterator[PubsubServer]:
    """A server of its own; ended when the context ends."""
    with TemporaryDirectory() as directory, started_server(PubsubServer(Path(directory))) as server:
        yield server
