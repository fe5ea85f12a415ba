"""A server that speaks the protocol of S3, for tests and benchmarks: SeaweedFS on the loopback, with kills as its API.

Above it: tests and benchmarks. Below it: the program that `make servers` fetches.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from uuid import uuid4

import obstore
from pyarrow import fs

from millstream.errors import MillstreamError, UserError
from millstream.ports import free_ports
from millstream_connectors.shared.objects.settings import ObjectStore, parse_url
from millstream_connectors.shared.objects.stores import FAILURES, error_of, make_store
from tests.support.server_process import START_TIMEOUT_S, ServerProcess, started_server

_VOLUMES = 100_000
"""Files that it may keep data in: far more than the tests have buckets. Its default follows from the free disk space,
so on a small or full disk it would refuse writes after a number of buckets."""
PROGRAM = Path(__file__).parents[2] / ".cache" / "servers" / "seaweedfs" / "bin" / "weed"
_ENVIRONMENT = {"HOME": "/nowhere", "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
"""One file for each bucket; it would make seven."""
KEY, SECRET = "writer", "a long secret"
READER = "reader"
"""May read and list, and not write; has the same secret."""
_IDENTITIES = {
    "identities": [
        {"name": "w", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]},
        {"name": "r", "credentials": [{"accessKey": READER, "secretKey": SECRET}], "actions": ["Read", "List"]},
    ]
}


def why_missing() -> str:
    """Why no server can be started here; empty when one can."""
    return "" if PROGRAM.exists() else "`make servers` fetches SeaweedFS, and has not"


class BucketServer(Protocol):
    """What a bucket needs of its server."""

    scheme: str
    """Of its URLs."""

    @property
    def endpoint(self) -> str: ...

    @property
    def settings(self) -> dict[str, str]: ...

    def store(self, bucket: str) -> Any: ...

    def pause(self) -> None: ...

    def go_on(self) -> None: ...


def _make_certificate(certificate: Path, key: Path) -> None:
    """One that is its own authority, and may not issue others: rustls accepts no authority's as a server's."""
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-addext", "basicConstraints=critical,CA:FALSE", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *kind, *names, *files], check=True, capture_output=True)


class ObjectServer(ServerProcess):
    """An object store."""

    name = "SeaweedFS"
    scheme = "s3"

    def __init__(self, directory: Path, contents: Path | None = None) -> None:
        """`contents`: a directory for the contents of objects alone; by default all is in one."""
        super().__init__(directory)
        self._contents = contents or directory
        self._ports = [free_ports() for _ in range(10)]
        self.port = self._ports[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def encrypted(self) -> str:
        """Its address with TLS."""
        return f"https://127.0.0.1:{self._ports[9]}"

    @property
    def certificate(self) -> Path:
        """Its certificate, which no other authority has issued."""
        return self.directory / "s3.pem"

    @property
    def iceberg(self) -> str:
        """Address of its REST catalog of Iceberg."""
        return f"http://127.0.0.1:{self._ports[8]}"

    @property
    def credential(self) -> str:
        """Of a client of the catalog."""
        return f"{KEY}:{SECRET}"

    @property
    def settings(self) -> dict[str, str]:
        """How pipeline files name it."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "accessKey": KEY, "secretKey": SECRET}

    def start(self) -> None:
        """Returns when it answers."""
        identities = self.directory / "s3.json"
        identities.write_text(json.dumps(_IDENTITIES))
        key = self.directory / "s3.key"
        if not self.certificate.exists():
            _make_certificate(self.certificate, key)
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, iceberg, s3_tls = self._ports
        command = [
            *(str(PROGRAM), "server", f"-dir={self._contents}", f"-master.dir={self.directory}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-master.port={master}", f"-master.port.grpc={master_grpc}", "-master.volumeSizeLimitMB=64"),
            *(
                "-master.telemetry=false",
                f"-volume.port={volume}",
                f"-volume.port.grpc={volume_grpc}",
                f"-volume.max={_VOLUMES}",
            ),
            "-volume.minFreeSpace=1MiB",
            *("-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}"),
            *("-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", f"-s3.config={identities}"),
            *(f"-s3.port.https={s3_tls}", f"-s3.cert.file={self.certificate}", f"-s3.key.file={key}"),
            *(f"-s3.port.iceberg={iceberg}", "-s3.port.lance=0"),
        ]
        self._run(command, _ENVIRONMENT)

    def until_complete(self, bucket: Bucket) -> None:
        """Returns when a bucket takes an object and gives all it has: a killed server answers before that."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        waiting = ["probe", *bucket.keys()]
        bucket.until_put("probe", deadline_s)
        while waiting:
            with suppress(*FAILURES):
                bucket.get(waiting[-1])
                waiting.pop()
            assert not waiting or time.monotonic() < deadline_s, f"{waiting[-1]} has not come back"

    def bucket(self) -> Bucket:
        """A new one."""
        name = f"b-{uuid4()}"
        self.files().create_dir(name)
        return Bucket(self, name)

    def table_bucket(self) -> Bucket:
        """A new one that holds tables of Iceberg: a warehouse of the catalog."""
        name, master = f"t-{uuid4()}", f"127.0.0.1:{self._ports[2]}.{self._ports[3]}"
        command = [str(PROGRAM), "shell", f"-master={master}"]
        asked = f"s3tables.bucket -create -name {name} -account admin\n"
        ended = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=30, check=True)
        assert "ARN" in ended.stdout + ended.stderr, ended
        return Bucket(self, name)

    def files(self) -> fs.S3FileSystem:
        """Arrow's own client."""
        return fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def store(self, bucket: str) -> Any:
        """The client that connectors use, for one bucket."""
        settings = ObjectStore.model_validate(self.settings)
        return make_store(parse_url(f"s3://{bucket}"), settings, self.directory, "test")

    def _answers(self) -> bool:
        """With a name that is not there, as soon as all of it works."""
        url = parse_url("s3://nothing-there")
        try:
            obstore.list(self.store("nothing-there")).collect()
        except FAILURES as error:
            found: MillstreamError = error_of(error, url, "test")
            return isinstance(found, UserError)
        return True


class Bucket:
    """One bucket, and what is in it."""

    def __init__(self, server: BucketServer, name: str) -> None:
        self.server = server
        self.name = name
        self._store = server.store(name)

    def url(self, key: str = "") -> str:
        return f"{self.server.scheme}://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data, use_multipart=False)

    def until_put(self, key: str, deadline_s: float) -> None:
        """Put an empty object as soon as that is possible."""
        while True:
            with suppress(*FAILURES):
                self.put(key, b"")
                return
            assert time.monotonic() < deadline_s, "the server takes no object"

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())

    def remove(self, key: str) -> None:
        obstore.delete(self._store, key)

    def keys(self, prefix: str | None = None) -> list[str]:
        """All, in order."""
        return sorted(meta["path"] for page in obstore.list(self._store, prefix) for meta in page)


@contextmanager
def open_objects_server(contents: Path | None = None) -> Iterator[ObjectServer]:
    """A server of its own; ended when the context ends."""
    with TemporaryDirectory() as directory, started_server(ObjectServer(Path(directory), contents)) as server:
        yield server
