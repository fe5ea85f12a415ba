"""An MQTT broker for tests: Mosquitto on the loopback, with kills as its API.

Above it: tests. Below it: the program that `make servers` fetched, and a client.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from millstream.ports import free_ports
from tests.support.server_process import ServerProcess, listens, started_server

FETCHED = Path(__file__).parents[2] / ".cache" / "servers" / "mosquitto"
PROGRAM = FETCHED / "usr" / "sbin" / "mosquitto"
PACKET_BYTES_MAX = 2_000_000
USER, PASSWORD = "shop", "a long secret"
_WAIT_S = 20.0
_NO_SUBSCRIBERS = 0x10


def why_missing() -> str:
    """Why no broker can be started here; empty when one can."""
    return "" if PROGRAM.exists() else "`make servers` fetches Mosquitto, and has not"


class MqttServer(ServerProcess):
    """After `stop` and `start` it has the same port and the same sessions; it stores them only when it ends, unless
    it `saves` each change."""

    name = "Mosquitto"

    def __init__(self, directory: Path, *, saves: bool = False) -> None:
        super().__init__(directory)
        self._saves = saves
        self.port = free_ports()
        self.tls_port = free_ports()
        self.certificate = directory / "server.crt"
        """Of the broker, and of its authority; there where openssl is."""

    @property
    def settings(self) -> dict[str, str]:
        """How pipeline files name it."""
        return {"url": f"mqtt://127.0.0.1:{self.port}", "user": USER, "password": PASSWORD}

    def start(self) -> None:
        """Returns when it takes connections."""
        here = self.directory
        libraries = [str(FETCHED / part / "x86_64-linux-gnu") for part in ("usr/lib", "lib")]
        environment = {"LD_LIBRARY_PATH": ":".join(libraries), "PATH": os.environ["PATH"]}
        users = here / "users"
        if not users.exists():
            words = [str(FETCHED / "usr" / "bin" / "mosquitto_passwd"), "-b", "-c", str(users), USER, PASSWORD]
            subprocess.run(words, check=True, capture_output=True, env=environment, timeout=20)
        config = here / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous false\npassword_file {users}\nuser root\n"
            f"acl_file {here}/rights\nmax_packet_size {PACKET_BYTES_MAX}\n"
            f"persistence true\npersistence_location {here}/\n"
            f"autosave_interval {int(self._saves)}\nautosave_on_changes {str(self._saves).lower()}\n"
            f"max_queued_messages 0\nmax_inflight_messages 0\n{self._tls()}"
        )
        (here / "rights").write_text(f"user {USER}\ntopic readwrite t/#\n")
        self._run([str(PROGRAM), "-c", str(config)], environment)

    def _answers(self) -> bool:
        return listens(self.port)

    def _tls(self) -> str:
        """The settings for encrypted connections."""
        if shutil.which("openssl") is None:
            return ""
        if not self.certificate.exists():
            subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
            files = ["-keyout", str(self.directory / "server.key"), "-out", str(self.certificate)]
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        return f"listener {self.tls_port} 127.0.0.1\ncertfile {self.certificate}\nkeyfile {self.directory}/server.key\n"

    # What tests do there

    def topic(self) -> str:
        """A new one."""
        return f"t/{uuid4()}"

    def send(self, topic: str, values: Sequence[bytes], *, ids: str = "", qos: int = 1, **more: str) -> None:
        """Messages, confirmed, in order; with ids of this beginning and their number."""
        client = self._client()
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        try:
            sent = []
            for n, value in enumerate(values):
                named = {"Millstream-Id": f"{ids}{n}"} if ids else {}
                sent.append(client.publish(topic, value, qos=qos, properties=_properties({**more, **named})))
            for one in sent:
                one.wait_for_publish(_WAIT_S)
        finally:
            client.disconnect()
            client.loop_stop()

    def keep(self, topic: str) -> None:
        """From now on the broker keeps what comes to a topic, for `kept`."""
        with self._listening(topic):
            pass

    def kept(self, topic: str) -> list[MQTTMessage]:
        """What has come to a topic since `keep`, or since the call before. Ends with a message of its own."""
        mark = f"{uuid4()}".encode()
        self.send(topic, [mark])
        found: list[MQTTMessage] = []
        with self._listening(topic) as arriving:
            while not found or found[-1].payload != mark:
                found.append(arriving.get(timeout=_WAIT_S))
        return found[:-1]

    @contextmanager
    def _listening(self, topic: str) -> Iterator[SimpleQueue[MQTTMessage]]:
        """What comes to a topic while this is open, and what the broker has kept since it was open before."""
        found: SimpleQueue[MQTTMessage] = SimpleQueue()
        ready = threading.Event()
        client = self._client(f"kept-{topic}")
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # as paho has it
        properties.SessionExpiryInterval = 3600
        client.on_message = lambda c, u, message: found.put(message)
        client.on_subscribe = lambda c, u, mid, reasons, p: ready.set()
        client.on_connect = lambda c, u, flags, reason, p: c.subscribe(topic, qos=1)
        client.connect("127.0.0.1", self.port, clean_start=False, properties=properties)
        client.loop_start()
        try:
            assert ready.wait(_WAIT_S), "no subscription"
            yield found
        finally:
            client.disconnect()
            client.loop_stop()

    def until_subscribed(self, topic: str) -> None:
        """Return when the broker hands on what is sent to a topic."""
        client = self._client()
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        taken = threading.Event()
        # A message that no subscription matches is confirmed with this reason.
        client.on_publish = lambda c, u, mid, reason, p: taken.set() if reason != _NO_SUBSCRIBERS else None
        deadline_s = time.monotonic() + _WAIT_S
        try:
            while not taken.wait(0.1):
                assert time.monotonic() < deadline_s, f"there is no subscription to {topic}"
                client.publish(topic, b"0", qos=1, properties=_properties({"Millstream-Id": "0-0"}))
        finally:
            client.disconnect()
            client.loop_stop()

    def _client(self, session: str = "") -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id=session, protocol=MQTTProtocolVersion.MQTTv5)
        client.username_pw_set(USER, PASSWORD)
        return client

    def log(self) -> str:
        """What it has said."""
        return (self.directory / "log").read_text(errors="replace")


def carried(message: MQTTMessage) -> dict[str, str]:
    """The user properties of a message."""
    return dict(getattr(message.properties, "UserProperty", ()))


def _properties(pairs: Mapping[str, str]) -> Any:
    """Of a message: what it carries."""
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # as paho has it
    if pairs:
        properties.UserProperty = [*pairs.items()]
    return properties


@contextmanager
def open_mqtt() -> Iterator[MqttServer]:
    """A broker of its own; ended when the context ends."""
    with TemporaryDirectory() as directory, started_server(MqttServer(Path(directory))) as server:
        yield server
