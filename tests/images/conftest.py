"""Images as `deploy/Dockerfile` makes them, in a store of the tests' own.

Building takes minutes and a gigabyte, so it is a job of its own: `make test-images`. It needs root, podman, buildah,
runc and debootstrap. The store is in `.cache/images` and is kept, so that the next run builds only what has changed;
the base image is made of Debian's packages, because there is no registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
STORE = (REPOSITORY / ".cache" / "images").resolve()
BASE = "docker.io/library/python:3.11-slim-bookworm"
NEEDED = ("podman", "buildah", "runc", "debootstrap")
BUILD_TIMEOUT_S = 5400
COMMAND_TIMEOUT_S = 120


def _missing() -> str | None:
    if not os.environ.get("MILLSTREAM_IMAGES"):
        return "images are built and run by `make test-images`, which takes minutes"
    if os.getuid() != 0:
        return "images are built as root here"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    missing = _missing()
    here = str(Path(__file__).parent)
    for item in items:
        if missing is not None and str(item.path).startswith(here):
            item.add_marker(pytest.mark.skip(reason=missing))


def run(*command: str, timeout_s: float = COMMAND_TIMEOUT_S, check: bool = True) -> str:
    """Run a program to its end; what it printed, of both kinds."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def _storage() -> list[str]:
    return ["--root", str(STORE / "store"), "--runroot", str(STORE / "run"), "--storage-driver", "overlay"]


def podman(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S, check: bool = True) -> str:
    """Run podman on the tests' store."""
    settings = ["--cgroup-manager", "cgroupfs", "--runtime", "runc"]
    return run("podman", *_storage(), *settings, *arguments, timeout_s=timeout_s, check=check)


def _make_base() -> None:
    """An image of Debian with Python under the name that the Dockerfile begins with, unless there is one."""
    if BASE in podman("images", "--format", "{{.Repository}}:{{.Tag}}").split():
        return
    root = STORE / "root"
    shutil.rmtree(root, ignore_errors=True)
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    run("debootstrap", "--variant=minbase", packages, "bookworm", str(root), timeout_s=BUILD_TIMEOUT_S)
    (root / "usr/bin/python").symlink_to("python3")
    # The authorities that this machine trusts, for the packages that are installed while images are built.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
    archive = STORE / "root.tar"
    run("tar", "-C", str(root), "-cf", str(archive), ".", timeout_s=BUILD_TIMEOUT_S)
    podman("import", str(archive), BASE, timeout_s=BUILD_TIMEOUT_S)
    archive.unlink()
    shutil.rmtree(root)


class Images:
    """The images of this checkout by the name of their service, each built when it is first asked for."""

    def __init__(self) -> None:
        STORE.mkdir(parents=True, exist_ok=True)
        _make_base()
        # By its digest, as a deployment should name it.
        self.base = f"{BASE}@{podman('image', 'inspect', '--format', '{{.Digest}}', BASE).strip()}"
        self._built = set[str]()

    def __getitem__(self, service: str) -> str:
        name = f"localhost/millstream-{service}"
        if service not in self._built:
            command = ["buildah", *_storage(), "bud", "--isolation", "chroot", "--pull-never", "--layers"]
            arguments = (f"SERVICE={service}", f"PYTHON_IMAGE={self.base}")
            command += [part for argument in arguments for part in ("--build-arg", argument)]
            command += ["--file", str(REPOSITORY / "deploy/Dockerfile"), "--tag", name, str(REPOSITORY)]
            run(*command, timeout_s=BUILD_TIMEOUT_S)
            self._built.add(service)
        return name


@pytest.fixture(scope="session")
def images() -> Iterator[Images]:
    try:
        yield Images()
    finally:
        # buildah keeps the containers in which it has built the images, and their file systems, which are mounted.
        run("buildah", *_storage(), "rm", "--all")


@dataclass(slots=True)
class Pod:
    """Containers that share one network with nothing but a loopback device, and a directory at /pipeline."""

    images: Images
    directory: Path
    prefix: str = field(default_factory=lambda: f"ms-{uuid4().hex[:8]}")
    names: list[str] = field(default_factory=list)

    def start(self, name: str, service: str, *arguments: str, options: Sequence[str] = ()) -> str:
        """Start one, read-only and without rights. The first one holds the network, so it has to stay."""
        full = f"{self.prefix}-{name}"
        network = f"container:{self.names[0]}" if self.names else "none"
        podman(
            "run",
            "--detach",
            "--name",
            full,
            "--pull=never",
            "--network",
            network,
            "--read-only",
            "--read-only-tmpfs=false",
            "--tmpfs",
            "/tmp:mode=1777",
            "--cap-drop",
            "all",
            "--security-opt",
            "no-new-privileges",
            "--ulimit",
            "nofile=1024:4096",
            "--ulimit",
            "nproc=1000:2000",
            "--volume",
            f"{self.directory}:/pipeline",
            *options,
            self.images[service],
            *arguments,
        )
        self.names.append(full)
        return full

    def remove(self, full: str) -> None:
        """Kill one and forget it."""
        podman("rm", "--force", "--time", "0", full)
        self.names.remove(full)

    def ended(self, full: str, *, timeout_s: float = 300) -> int:
        """Wait until one has ended. Its exit code."""
        return int(podman("wait", full, timeout_s=timeout_s).split()[-1])

    def logs(self, full: str) -> str:
        return podman("logs", full)


@pytest.fixture
def pod(images: Images, tmp_path: Path) -> Iterator[Pod]:
    directory = tmp_path / "pipeline"
    directory.mkdir()
    # The user of the containers may write there.
    directory.chmod(0o777)
    opened = Pod(images, directory)
    try:
        opened.start("network", "udf-python", "infinity", options=("--entrypoint", "sleep"))
        yield opened
    finally:
        for name in reversed(opened.names):
            podman("rm", "--force", "--time", "0", name, check=False)
