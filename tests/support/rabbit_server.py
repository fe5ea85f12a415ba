"""A RabbitMQ server for tests and benchmarks: on the loopback, with TLS beside, and with kills as its API.

Above it: tests and benchmarks. Below it: the programs that `make servers` fetched, and a client.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

import aiormq
from aiormq.abc import AbstractChannel, ChannelFrame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from millstream.die_with_parent import dying_with_parent
from millstream.ports import free_ports
from millstream.wire.certificates import Certificate, make_certificate
from tests.support.children import together
from tests.support.server_process import ServerProcess, listens

T = TypeVar("T")

FETCHED = Path(__file__).parents[2] / ".cache" / "servers" / "rabbitmq"
_SETTLED_S = 60.0
USER, PASSWORD = "shop", "a long secret"
"""May do everything in the virtual host `shop`, and nothing in `/`."""
WRITER = "writer"
"""Has the same password, and may do everything in the virtual host `/`."""
CERTIFIED = "certified"
"""Shows a certificate, and may do everything in the virtual host `shop`."""
VIRTUAL_HOST = "shop"
_FREE_BYTES = 1_000_000
_LIMITS = f"disk_free_limit.absolute = {_FREE_BYTES}\nvm_memory_high_watermark.absolute = 1GB\n"
"""By default it accepts no message where the disk or the memory of the machine is small."""
_RIGHTS = {"configure": ".*", "write": ".*", "read": ".*"}
_DEFINITIONS = {
    "vhosts": [{"name": "/"}, {"name": VIRTUAL_HOST}],
    "users": [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": USER, "password": PASSWORD, "tags": ""},
        {"name": WRITER, "password": PASSWORD, "tags": ""},
        {"name": CERTIFIED, "password_hash": "", "tags": ""},
    ],
    "permissions": [
        {"user": "guest", "vhost": "/", **_RIGHTS},
        {"user": USER, "vhost": VIRTUAL_HOST, **_RIGHTS},
        {"user": WRITER, "vhost": "/", **_RIGHTS},
        {"user": CERTIFIED, "vhost": VIRTUAL_HOST, **_RIGHTS},
    ],
}


def _erts() -> Path | None:
    return next(iter(FETCHED.glob("usr/lib/erlang/erts-*/bin")), None)


def why_missing() -> str:
    """Why no server can be started here; empty when one can."""
    return "" if _erts() is not None else "`make servers` fetches RabbitMQ and Erlang, and has not"


class RabbitServer(ServerProcess):
    """A node, with its directory of names."""

    name = "RabbitMQ"
    start_timeout_s = 300.0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._names: subprocess.Popen[bytes] | None = None
        self._streams_kept = False
        """Whether the server has written down where its coordinator of streams is."""
        self.port, self.tls_port, self._names_port, self._nodes_port = (free_ports() for _ in range(4))
        self.certificate = directory / "server.crt"
        """Of the server, and of its authority; there where openssl is."""

    @property
    def settings(self) -> dict[str, str]:
        """How pipeline files name it."""
        return {"url": f"amqp://127.0.0.1:{self.port}"}

    def start(self) -> None:
        """Returns when it takes connections. It ends with the thread that calls this."""
        erts = _erts()
        assert erts is not None, why_missing()
        root = FETCHED / "usr" / "lib" / "erlang"
        home = next(iter(FETCHED.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")))
        here = self.directory
        (here / "definitions.json").write_text(json.dumps(_DEFINITIONS))
        (here / "enabled_plugins").write_text("[rabbitmq_auth_mechanism_ssl].")
        definitions = f"load_definitions = {here / 'definitions.json'}\n"
        (here / "rabbitmq.conf").write_text(definitions + _LIMITS + self._tls())
        environment = {
            "HOME": str(here),
            "PATH": f"{erts}:{root / 'bin'}:{os.environ['PATH']}",
            "ROOTDIR": str(root),
            "BINDIR": str(erts),
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_LIBS": str(home / "plugins"),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": "/dev/null",
            "RABBITMQ_HOME": str(home),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(here / "mnesia"),
            "RABBITMQ_LOG_BASE": str(here / "logs"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_LOGS": "-",
        }
        distribution = [f"inet_dist_listen_{end} {self._nodes_port}" for end in ("min", "max")]
        kernel = [
            word for one in [*distribution, "inet_dist_use_interface {127,0,0,1}"] for word in ("-kernel", *one.split())
        ]
        command = [
            *(
                str(erts / "erlexec"),
                "-noshell",
                "-noinput",
                "+W",
                "w",
                "+sbwt",
                "none",
                "+sbwtdcpu",
                "none",
                "+S",
                "2",
            ),
            *kernel,
            *("-s", "rabbit", "boot", "-boot", str(root / "bin" / "start_sasl")),
        ]
        if self._names is None:
            names = dying_with_parent([str(erts / "epmd"), "-port", str(self._names_port)])
            with (here / "log").open("ab") as log:
                self._names = subprocess.Popen(names, env=environment, cwd=here, stdout=log, stderr=log)
            self._until(self._names, lambda: listens(self._names_port))
        self._run(command, environment)

    def _tls(self) -> str:
        """The settings for encrypted connections."""
        if shutil.which("openssl") is None:
            return ""
        key = self.directory / "server.key"
        if not self.certificate.exists():
            subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
            files = ["-keyout", str(key), "-out", str(self.certificate)]
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        authority = self._files("authority")
        if not authority.certificate.exists():
            make_certificate(self.directory, "authority", "authority")
        return (
            "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name\n"
            f"ssl_options.cacertfile = {self._files('authority').certificate}\nssl_options.verify = verify_peer\n"
            "ssl_options.fail_if_no_peer_cert = false\n"
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.certfile = {self.certificate}\nssl_options.keyfile = {key}\n"
        )

    def own(self) -> Certificate:
        """A certificate of the user `CERTIFIED`, signed by the authority that the server trusts."""
        made, authority = (self._files(file) for file in ("client", "authority"))
        if not made.certificate.exists():
            request = self.directory / "client.csr"
            key = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={CERTIFIED}"]
            sign = ["openssl", "x509", "-req", "-days", "2", "-in", str(request), "-CAcreateserial"]
            sign += ["-CA", str(authority.certificate), "-CAkey", str(authority.key), "-out", str(made.certificate)]
            for command in ([*key, "-keyout", str(made.key), "-out", str(request)], sign):
                subprocess.run(command, check=True, capture_output=True, timeout=60)
        return made

    def _files(self, file: str) -> Certificate:
        return Certificate(self.directory / f"{file}.pem", self.directory / f"{file}.key")

    def close(self) -> None:
        """It and its directory of names."""
        self.kill()
        if self._names is not None:
            self._names.kill()
            self._names.wait()

    # What tests do there

    def limit_disk(self, free_bytes: int = _FREE_BYTES) -> None:
        """As `rabbitmqctl set_disk_free_limit`: with less free space, it takes no messages."""
        self._call(f"rabbit_disk_monitor set_disk_free_limit [{free_bytes}]")

    def _call(self, function: str) -> None:
        """Call a function of Erlang there, which returns `ok`."""
        erl_call = next(iter(FETCHED.glob("usr/lib/erlang/lib/erl_interface-*/bin/erl_call")))
        cookie = (self.directory / ".erlang.cookie").read_text()
        command = [str(erl_call), "-sname", f"test{self.port}@localhost", "-c", cookie, "-a", function]
        environment = {**os.environ, "ERL_EPMD_PORT": str(self._names_port)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout == "ok", done

    def queue(self, kind: str = "classic", name: str = "", **arguments: int) -> str:
        """A new one. `arguments`: with underscores for dashes."""
        name = name or f"{kind}-{uuid4()}"
        given: dict[str, Any] = {key.replace("_", "-"): value for key, value in arguments.items()}

        async def declare(channel: AbstractChannel) -> None:
            await channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **given})

        self.do(declare)
        # A server of version 3.10 that is killed just after this forgets the queue, though it has confirmed it.
        self._call("mnesia sync_log []")
        return name

    def stream(self) -> str:
        """A new stream that outlives kills of the server."""
        name = self.queue("stream")
        if not self._streams_kept:
            # A server of version 3.10 forgets all streams if it is killed before it was stopped once: it writes down
            # where its coordinator of streams is when it stops, or after minutes.
            self.stop()
            self.start()
            self._streams_kept = True
            self.until_there(name)
        return name

    def until_there(self, queue: str) -> None:
        """A stream is there a moment after its server."""
        deadline_s = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline_s:
            with suppress(aiormq.exceptions.ChannelNotFoundEntity):
                self.left(queue)
                return
        raise AssertionError(f"{queue} is not there: {self._tail()}")

    def remove(self, queue: str) -> None:
        async def delete(channel: AbstractChannel) -> None:
            await channel.queue_delete(queue)

        self.do(delete)

    def send(self, queue: str, values: Sequence[bytes], *, ids: str, **properties: Any) -> None:
        """Messages, confirmed, in order; with ids of this beginning and their number."""

        async def publish(channel: AbstractChannel) -> None:
            for start in range(0, len(values), 500):
                part = enumerate(values[start : start + 500], start)
                await together(
                    *(
                        channel.basic_publish(
                            value,
                            routing_key=queue,
                            properties=aiormq.spec.Basic.Properties(
                                delivery_mode=2, message_id=f"{ids}{n}", **properties
                            ),
                        )
                        for n, value in part
                    )
                )

        self.do(publish)

    def send_without_ids(self, queue: str, values: Sequence[bytes]) -> None:
        """As other clients do: this one always gives an id."""

        async def publish(channel: AbstractChannel) -> None:
            for value in values:
                header = ContentHeader(body_size=len(value), properties=aiormq.spec.Basic.Properties())
                frames: list[Any] = [aiormq.spec.Basic.Publish(routing_key=queue), header, ContentBody(value)]
                await channel.write_queue.put(ChannelFrame.marshall(channel.number, frames))  # type: ignore[attr-defined]
            await channel.queue_declare(queue, passive=True)

        self.do(publish, confirms=False)

    def left(self, queue: str) -> int:
        """Messages that are in no consumer's hands."""

        async def count(channel: AbstractChannel) -> int:
            return (await channel.queue_declare(queue, passive=True)).message_count or 0

        return int(self.do(count))

    def until_left(self, queue: str, count: int) -> None:
        """Until there are so many: a queue takes back what a closed connection held a moment after it is closed."""
        deadline_s = time.monotonic() + _SETTLED_S
        while (left := self.left(queue)) != count:
            assert time.monotonic() < deadline_s, f"{left} messages are left, not {count}"

    def taken(self, queue: str) -> list[Any]:
        """All messages of a queue, which they leave."""

        async def get(channel: AbstractChannel) -> list[Any]:
            found = []
            while (message := await channel.basic_get(queue, no_ack=True)).delivery.name == "Basic.GetOk":
                found.append(message)
            return found

        return list(self.do(get))

    def do(self, work: Any, *, confirms: bool = True) -> Any:
        """What `work` makes of a channel."""

        async def run() -> Any:
            connection = await aiormq.connect(f"amqp://guest:guest@127.0.0.1:{self.port}/")
            try:
                return await work(await connection.channel(publisher_confirms=confirms))
            finally:
                await connection.close()

        return in_a_loop(run())

    def _answers(self) -> bool:
        return listens(self.port)


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own, in a thread where this one has one."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@contextmanager
def open_rabbit() -> Iterator[RabbitServer]:
    """A server of its own; ended when the context ends."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        server = RabbitServer(Path(directory))
        try:
            server.start()
            yield server
        finally:
            server.close()
