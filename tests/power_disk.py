"""A disk whose power can be cut: what was not made durable by then is gone, for every process and the kernel itself.

A real ext4 in a file, mounted through a loop device. The cut is the file system's own emergency stop, without writing
out its journal: from then on every call on it fails, and what is there at the next mount is what its journal gives.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.small_disk import give_up

_EXT4_IOC_SHUTDOWN = 0x8004587D
"""`_IOR('X', 125, __u32)` of Linux' fs/ext4/ext4.h."""
_NOLOGFLUSH = struct.pack("I", 2)
_UMOUNT_TIMEOUT_S = 20.0


class PowerDisk:
    """A mounted one."""

    def __init__(self, image: Path, path: Path) -> None:
        self.path = path
        """Where it is mounted."""
        self._image = image

    def cut(self) -> None:
        """Cut the power. Processes with open files there have to be ended before `restore`."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, _NOLOGFLUSH)
        finally:
            os.close(descriptor)

    async def restore(self) -> None:
        """The machine is back: mount what is left.

        A copy of it, because the stopped file system may live on: it stays mounted in every mount namespace that was
        made meanwhile (of a container, say), and the same image would be given the same stopped file system again.
        """
        await self._unmount()
        left = self._image.with_suffix(".left")
        _run("cp", "--sparse=always", str(self._image), str(left))
        left.replace(self._image)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    async def _unmount(self) -> None:
        """A process that was killed may have a file open a moment longer."""
        async with asyncio.timeout(_UMOUNT_TIMEOUT_S):
            while True:
                try:
                    return _run("umount", str(self.path))
                except OSError as error:
                    if "busy" not in str(error):
                        raise
                await asyncio.sleep(0.05)


@asynccontextmanager
async def open_power_disk(directory: Path, size_bytes: int) -> AsyncIterator[PowerDisk]:
    """One in `directory`, which is made. Where none can be mounted the test is skipped, and in CI it fails."""
    directory.mkdir()
    image, path = directory / "image", directory / "mounted"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    disk = PowerDisk(image, path)
    try:
        _run("mkfs.ext4", "-q", "-F", str(image))
        disk._mount()
    except OSError as error:
        give_up(f"no ext4 in a file can be mounted here: {error}")
    try:
        yield disk
    finally:
        await disk._unmount()
        image.unlink()


def _run(*command: str) -> None:
    """Raises `OSError` with what it said."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PATH": path}
    )
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")
