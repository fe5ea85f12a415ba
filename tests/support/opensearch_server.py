"""A real OpenSearch for tests: one node on the loopback, with kills as its API.

Above it: tests. Below it: Java, and the jars that `make servers` fetches. It runs as the user of the tests; root runs
it as `nobody`. How much of the disk is in use does not matter to it.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from millstream.die_with_parent import dying_with_parent
from millstream.ports import free_ports

LIBRARIES = Path(__file__).parents[2] / ".cache" / "servers" / "opensearch"
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
_NOBODY = "nobody"
_MODULE = "transport-netty4"
_JAVA = ["-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-Djava.security.manager=allow"]
_DESCRIPTION = f"""\
name={_MODULE}
description=HTTP
version={{version}}
opensearch.version={{version}}
java.version=11
classname=org.opensearch.transport.Netty4Plugin
"""
_POLICY = """\
grant {
  permission java.net.SocketPermission "*", "accept,connect,resolve";
  permission java.lang.RuntimePermission "setContextClassLoader";
};
"""
_SETTINGS = """\
discovery.type: single-node
network.host: 127.0.0.1
http.port: {port}
transport.port: {transport}
path.data: {home}/data
path.logs: {home}/logs
cluster.routing.allocation.disk.threshold_enabled: false
node.store.allow_mmap: false
action.auto_create_index: "-absent*,+*"
"""
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def why_missing() -> str:
    """Why no server can be started here; empty when one can."""
    if shutil.which("java") is None:
        return "OpenSearch needs Java, which is not installed"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "OpenSearch refuses root, and setpriv is not installed"
    return "" if LIBRARIES.is_dir() else "`make servers` fetches OpenSearch, and has not"


class OpenSearchServer:
    """After `kill` and `start` it has the same port and the same data."""

    def __init__(self, directory: Path) -> None:
        self._home = directory
        self.port, self._transport = free_ports(), free_ports()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """In a pipeline file."""
        return {"url": f"http://127.0.0.1:{self.port}"}

    def make(self) -> None:
        """The files of a server that has nothing."""
        module = self._home / "modules" / _MODULE
        module.mkdir(parents=True)
        for name in ("config", "data", "logs", "tmp"):
            (self._home / name).mkdir()
        (core,) = LIBRARIES.glob("opensearch-[0-9]*.jar")
        version = core.stem.removeprefix("opensearch-")
        for jar in LIBRARIES.iterdir():
            if _is_of_module(jar):
                shutil.copy(jar, module)
        (module / "plugin-descriptor.properties").write_text(_DESCRIPTION.format(version=version))
        (module / "plugin-security.policy").write_text(_POLICY)
        (self._home / "config" / "log4j2.properties").write_text(_LOGGING)
        text = _SETTINGS.format(port=self.port, transport=self._transport, home=self._home)
        (self._home / "config" / "opensearch.yml").write_text(text)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(_NOBODY)
            for path in (self._home, *self._home.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def start(self) -> None:
        """Returns when it answers."""
        jars = ":".join(str(jar) for jar in sorted(LIBRARIES.iterdir()) if not _is_of_module(jar))
        places = [f"-Dopensearch.path.home={self._home}", f"-Dopensearch.path.conf={self._home}/config"]
        command = ["java", *_JAVA, *places, f"-Djava.io.tmpdir={self._home}/tmp", "-cp", jars]
        if os.geteuid() == 0:
            as_nobody = ["setpriv", f"--reuid={_NOBODY}", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
            command = [*as_nobody, *command]
        with (self._home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                dying_with_parent([*command, "org.opensearch.bootstrap.OpenSearch"]),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=self._home,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, self._tail()
            assert time.monotonic() < deadline, f"OpenSearch did not answer: {self._tail()}"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def kill(self) -> None:
        """As `kill -9` does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def index(self) -> str:
        """The name of a new one."""
        return f"t-{uuid4()}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request, by a client that is not ours. Raises `urllib.error.HTTPError`."""
        return self._ask(method, path, None if body is None else json.dumps(body).encode())

    def bulk(self, index: str, body: bytes) -> Any:
        """A bulk request, as it is."""
        return self._ask("POST", f"{index}/_bulk", body)

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """By their ids."""
        try:
            self.ask("POST", f"{index}/_refresh")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise
        found = self.ask("POST", f"{index}/_search", {"size": 10_000, "query": {"match_all": {}}})
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}

    def numbers(self, index: str) -> list[int]:
        """Member `n` of each document; an index has no order."""
        return sorted(document["n"] for document in self.documents(index).values())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        url = f"http://127.0.0.1:{self.port}/{path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def _answers(self) -> bool:
        with suppress(OSError, ValueError):
            # Indices are there again when they can be written to.
            health = self.ask("GET", "_cluster/health?wait_for_no_initializing_shards=true&timeout=1s")
            return not health["timed_out"]
        return False

    def _tail(self) -> str:
        return (self._home / "output").read_text(errors="replace")[-3000:]


def _is_of_module(jar: Path) -> bool:
    return jar.name.startswith(("netty-", _MODULE))


@contextmanager
def open_opensearch() -> Iterator[OpenSearchServer]:
    """A server of one's own, killed at the end, with its files."""
    directory = Path(tempfile.mkdtemp(prefix="millstream-opensearch-"))
    try:
        server = OpenSearchServer(directory)
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory)
