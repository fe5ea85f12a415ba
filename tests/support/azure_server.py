"""Azure's blob storage, emulated by Azurite on the loopback, for tests.

Above it: tests. Below it: Node, and the program that `make servers` fetches.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from millstream.ports import free_ports
from millstream_connectors.shared.objects.settings import ObjectStore, parse_url
from millstream_connectors.shared.objects.stores import make_store
from tests.support.object_server import Bucket
from tests.support.server_process import START_TIMEOUT_S, ServerProcess, started_server

_PROGRAM = (
    Path(__file__).parents[2] / ".cache" / "servers" / "azurite" / "node_modules" / "azurite/dist/src/blob/main.js"
)
ACCOUNT = "writer"
KEY = base64.b64encode(b"a long secret").decode()
_VERSION = "2021-08-06"


def why_missing() -> str:
    """Why no server can be started here; empty when one can."""
    if shutil.which("node") is None:
        return "Azurite needs Node, which is not installed"
    return "" if _PROGRAM.exists() else "`make servers` fetches Azurite, and has not"


class AzureServer(ServerProcess):
    """Has one account."""

    name = "Azurite"
    scheme = "az"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._port = free_ports()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}/{ACCOUNT}"

    @property
    def settings(self) -> dict[str, str]:
        """How pipeline files name it."""
        return {"endpoint": self.endpoint, "account": ACCOUNT, "accountKey": KEY}

    @property
    def emulated(self) -> dict[str, str]:
        """The environment with which its clients know that it is an emulator."""
        return {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": self.endpoint.removesuffix(f"/{ACCOUNT}"),
        }

    def signature(self, permissions: str) -> str:
        """A shared access signature for all of the account's blobs, `rwdlc` or some of these."""
        fields = {
            "sp": permissions,
            "ss": "b",
            "srt": "sco",
            "st": "",
            "se": "2099-01-01T00:00:00Z",
            "sip": "",
            "spr": "",
        }
        signed = "\n".join([ACCOUNT, *fields.values(), _VERSION, "", ""])
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        given = {name: value for name, value in fields.items() if value}
        return urlencode({"sv": _VERSION, **given, "sig": base64.b64encode(digest).decode()})

    def start(self) -> None:
        """Returns when it answers."""
        options = ["--blobHost", "127.0.0.1", "--blobPort", str(self._port), "--location", str(self.directory)]
        node = shutil.which("node")
        assert node is not None, "it is installed"
        environment = {"HOME": str(self.directory), "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
        self._run([node, str(_PROGRAM), *options, "--silent", "--disableTelemetry"], environment)

    def bucket(self) -> Bucket:
        """A new container. The client of connectors cannot create one."""
        name = f"b-{uuid4()}"
        date = formatdate(usegmt=True)
        signed = (
            "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            "Content-Length": "0",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_TIMEOUT_S)
        try:
            connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()
        finally:
            connection.close()
        return Bucket(self, name)

    def _answers(self) -> bool:
        with suppress(OSError):
            self.bucket()
            return True
        return False

    def store(self, bucket: str) -> Any:
        """The client that connectors use, for one container."""
        settings = ObjectStore.model_validate(self.settings)
        return make_store(parse_url(f"az://{bucket}"), settings, self.directory, "test")


@contextmanager
def open_azure() -> Iterator[AzureServer]:
    """A server of its own; ended when the context ends."""
    with TemporaryDirectory() as directory, started_server(AzureServer(Path(directory))) as server:
        yield server
