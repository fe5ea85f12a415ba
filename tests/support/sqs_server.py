"""A server that emulates SQS, for tests: moto on the loopback, which checks credentials.

Its queues are in memory: they are gone when it is killed, so it can be paused and not killed.

Above it: tests. Below it: the package that `make servers` fetched, and a client.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from aiobotocore.session import get_session

from millstream.ports import free_ports
from tests.support.rabbit_server import in_a_loop
from tests.support.server_process import ServerProcess, listens, started_server

FETCHED = Path(__file__).parents[2] / ".cache" / "servers" / "moto"
_ALLOWED = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
_BEFORE_IT_CHECKS = 3
"""Requests that make the user."""


def why_missing() -> str:
    """Why no server can be started here; empty when one can."""
    return "" if (FETCHED / "moto").is_dir() else "`make servers` fetches moto, which emulates SQS, and has not"


class SqsServer(ServerProcess):
    """Made by `open_sqs`. It forgets its queues when it is killed."""

    name = "moto"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_ports()
        self.key = ("first", "first")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self, queue: str) -> dict[str, str]:
        """How pipeline files name a queue."""
        return {"queueUrl": queue, "accessKey": self.key[0], "secretKey": self.key[1]}

    def start(self) -> None:
        """Returns when it takes requests of its user."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PYTHONPATH": str(FETCHED),
            "INITIAL_NO_AUTH_ACTION_COUNT": str(_BEFORE_IT_CHECKS),
        }
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._run(command, environment)
        self.key = self._do(self._make_user, service="iam")

    def _answers(self) -> bool:
        return listens(self.port)

    # What tests do there

    def queue(self, *, fifo: bool = False) -> str:
        """The URL of a new one."""
        attributes = {"FifoQueue": "true"} if fifo else {}

        async def create(client: Any) -> str:
            name = f"{uuid4()}{'.fifo' if fifo else ''}"
            return str((await client.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"])

        return str(self._do(create))

    def send(self, queue: str, values: Sequence[bytes], group: str = "", **more: Any) -> None:
        """Messages, in order; to a FIFO queue with a group."""

        async def send(client: Any) -> None:
            for start in range(0, len(values), 10):
                entries = [
                    {
                        "Id": str(n),
                        "MessageBody": value.decode(),
                        **more,
                        **({"MessageGroupId": group, "MessageDeduplicationId": f"{group}-{n}"} if group else {}),
                    }
                    for n, value in enumerate(values[start : start + 10], start)
                ]
                answer = await client.send_message_batch(QueueUrl=queue, Entries=entries)
                assert not answer.get("Failed"), answer

        self._do(send)

    def left(self, queue: str) -> tuple[int, int]:
        """Messages that wait, and those that are hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

        async def count(client: Any) -> tuple[int, int]:
            found = (await client.get_queue_attributes(QueueUrl=queue, AttributeNames=names))["Attributes"]
            return int(found[names[0]]), int(found[names[1]])

        waiting, hidden = self._do(count)
        return waiting, hidden

    def taken(self, queue: str) -> list[Any]:
        """All messages of a queue, which they leave."""

        async def take(client: Any) -> list[Any]:
            found: list[Any] = []
            while messages := (
                await client.receive_message(
                    QueueUrl=queue,
                    MaxNumberOfMessages=10,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=["All"],
                )
            ).get("Messages"):
                found += messages
                handles = [message["ReceiptHandle"] for message in messages]
                entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
                await client.delete_message_batch(QueueUrl=queue, Entries=entries)
            return found

        return list(self._do(take))

    async def _make_user(self, client: Any) -> tuple[str, str]:
        await client.create_user(UserName="shop")
        await client.put_user_policy(UserName="shop", PolicyName="all", PolicyDocument=_ALLOWED)
        key = (await client.create_access_key(UserName="shop"))["AccessKey"]
        return str(key["AccessKeyId"]), str(key["SecretAccessKey"])

    def _do(self, work: Callable[[Any], Awaitable[Any]], *, service: str = "sqs") -> Any:
        async def run() -> Any:
            client = get_session().create_client(
                service,
                region_name="us-east-1",
                endpoint_url=self.url,
                aws_access_key_id=self.key[0],
                aws_secret_access_key=self.key[1],
            )
            async with client as opened:
                return await work(opened)

        return in_a_loop(asyncio.wait_for(run(), 60))


@contextmanager
def open_sqs() -> Iterator[SqsServer]:
    """A server of its own; ended when the context ends."""
    with TemporaryDirectory() as directory, started_server(SqsServer(Path(directory))) as server:
        yield server
