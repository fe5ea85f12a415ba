"""A real OpenSearch or Elasticsearch for tests: one node on the loopback, with kills as its API.

Above it: tests. Below it: Java, and the jars that `make servers` fetches. It runs as the user of the tests; root runs
it as `nobody`. How much of the disk is in use does not matter to it.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from millstream.ports import free_ports
from tests.support.server_process import ServerProcess, started_server

_FETCHED = Path(__file__).parents[2] / ".cache" / "servers"
ANSWER_TIMEOUT_S = 180.0
_NOBODY = "nobody"
_MODULE = "transport-netty4"
_JAVA = ["-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-Djava.security.manager=allow", "-Dlog4j2.disable.jmx=true"]
_DESCRIPTION = f"""\
name={_MODULE}
description=HTTP
version={{version}}
{{name}}.version={{version}}
java.version=11
classname=org.{{name}}.transport.Netty4Plugin
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
cluster.info.update.interval: 10s
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


class Product(NamedTuple):
    """One of two programs that grew from the same code."""

    name: str
    main: str
    """Class in its package for the start."""
    options: str
    """Beginning of the names of its options."""

    @property
    def libraries(self) -> Path:
        return _FETCHED / self.name


OPENSEARCH = Product("opensearch", "OpenSearch", "opensearch")
ELASTICSEARCH = Product("elasticsearch", "Elasticsearch", "es")


def why_missing(product: Product = OPENSEARCH) -> str:
    """Why no server can be started here; empty when one can."""
    if shutil.which("java") is None:
        return f"{product.main} needs Java, which is not installed"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return f"{product.main} refuses root, and setpriv is not installed"
    return "" if product.libraries.is_dir() else f"`make servers` fetches {product.main}, and has not"


class OpenSearchServer(ServerProcess):
    """One node."""

    start_timeout_s = 300.0

    def __init__(self, directory: Path, product: Product = OPENSEARCH) -> None:
        super().__init__(directory)
        self._product, self.name = product, product.main
        self.port, self._transport = free_ports(), free_ports()

    @property
    def settings(self) -> dict[str, Any]:
        """In a pipeline file."""
        return {"url": f"http://127.0.0.1:{self.port}"}

    def make(self) -> None:
        """The files of a server that has nothing."""
        module = self.directory / "modules" / _MODULE
        module.mkdir(parents=True)
        for part in ("config", "data", "logs", "tmp", "plugins"):
            (self.directory / part).mkdir()
        name = self._product.name
        (core,) = self._product.libraries.glob(f"{name}-[0-9]*.jar")
        version = core.stem.removeprefix(f"{name}-")
        for jar in self._product.libraries.iterdir():
            if _is_of_module(jar):
                shutil.copy(jar, module)
        (module / "plugin-descriptor.properties").write_text(_DESCRIPTION.format(name=name, version=version))
        (module / "plugin-security.policy").write_text(_POLICY)
        (self.directory / "config" / "log4j2.properties").write_text(_LOGGING)
        text = _SETTINGS.format(port=self.port, transport=self._transport, home=self.directory)
        (self.directory / "config" / f"{name}.yml").write_text(text)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(_NOBODY)
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)

    def start(self) -> None:
        """Returns when it answers."""
        name, main, options = self._product
        libraries = sorted(self._product.libraries.iterdir())
        jars = ":".join(str(jar) for jar in libraries if not _is_of_module(jar))
        places = [f"-D{options}.path.home={self.directory}", f"-D{options}.path.conf={self.directory}/config"]
        command = ["java", *_JAVA, *places, f"-Djava.io.tmpdir={self.directory}/tmp", "-cp", jars]
        if os.geteuid() == 0:
            as_nobody = ["setpriv", f"--reuid={_NOBODY}", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
            command = [*as_nobody, *command]
        self._run([*command, f"org.{name}.bootstrap.{main}"], {**os.environ, "LIBFFI_TMPDIR": f"{self.directory}/tmp"})

    def index(self) -> str:
        """The name of a new one."""
        return f"t-{uuid4()}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request, by a client that is not ours. In the answer, numbers with a fraction or an exponent are
        decimals. Raises `urllib.error.HTTPError`."""
        return self._ask(method, path, None if body is None else json.dumps(body).encode())

    def bulk(self, index: str, body: bytes) -> Any:
        """A bulk request, as it is."""
        return self._ask("POST", f"{index}/_bulk", body)

    def want_free(self, size: str | None) -> None:
        """Make indexes read-only while less than this of the disk is free; with None, it does not matter."""
        disk = {"threshold_enabled": None} if size is None else {"threshold_enabled": True}
        marks = dict.fromkeys(("low", "high", "flood_stage"), size)
        settings = {"cluster.routing.allocation.disk": {**disk, "watermark": marks}}
        self.ask("PUT", "_cluster/settings", {"transient": settings})

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """By their ids."""
        try:
            self.ask("POST", f"{index}/_refresh")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise
        documents: dict[str, dict[str, Any]] = {}
        found = self.ask("POST", f"{index}/_search?scroll=1m", {"size": 10_000, "query": {"match_all": {}}})
        while hits := found["hits"]["hits"]:
            documents.update((hit["_id"], hit["_source"]) for hit in hits)
            found = self.ask("POST", "_search/scroll", {"scroll": "1m", "scroll_id": found["_scroll_id"]})
        return documents

    def numbers(self, index: str) -> list[int]:
        """Member `n` of each document; an index has no order."""
        return sorted(document["n"] for document in self.documents(index).values())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        url = f"http://127.0.0.1:{self.port}/{path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            return json.loads(answer.read(), parse_float=Decimal)

    def _answers(self) -> bool:
        with suppress(OSError, ValueError):
            # Indices are there again when they can be written to.
            health = self.ask("GET", "_cluster/health?wait_for_no_initializing_shards=true&timeout=1s")
            return not health["timed_out"]
        return False


def _is_of_module(jar: Path) -> bool:
    return jar.name.startswith(("netty-", _MODULE))


@contextmanager
def open_opensearch(product: Product = OPENSEARCH) -> Iterator[OpenSearchServer]:
    """A server of one's own, killed at the end, with its files."""
    directory = Path(tempfile.mkdtemp(prefix=f"millstream-{product.name}-"))
    try:
        server = OpenSearchServer(directory, product)
        server.make()
        with started_server(server):
            yield server
    finally:
        shutil.rmtree(directory)
