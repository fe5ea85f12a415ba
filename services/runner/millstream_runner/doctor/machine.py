"""The machine itself: Python, the disk of the data, memory, limits of processes, ports, the terminal."""

from __future__ import annotations

import fcntl
import locale
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from millstream.errors import InfrastructureError
from millstream.limits import MIB
from millstream.ports import free_ports, why_not
from millstream.resources import processors, usable_memory
from millstream.udf.socket_directory import open_socket_directory
from millstream_runner.doctor.checks import CheckState, Finding, Needs, judged
from millstream_runner.local.prerequisites import BROKER_SHARE, FILES_ADVISED, existing, more_files

_EVERYTHING = "everything"
_PYTHON_MIN = (3, 11)
_NETWORK = frozenset({
    "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gpfs", "lustre",
    "nfs", "nfs4", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "webdav",
})  # fmt: skip
"""File systems on other machines, or on the host of a virtual machine, where fsync and locks may guarantee less."""
_DOUBTFUL = {
    **dict.fromkeys(_NETWORK, "a network file system"),
    **dict.fromkeys(("ramfs", "tmpfs"), "gone when the machine restarts"),
}
"""File systems that may not keep what was committed, and why."""
_SYNCS = 15
_SYNC_SLOW_MS = 20.0
"""Above this, a commit waits longer for the disk than for everything else."""
_DISK_SMALL_BYTES = 2048 * MIB
_MEMORY_BYTES = 600 * MIB
"""What the broker, two workers and a few functions need."""
_SPARK_BYTES = 2048 * MIB
"""What Spark's driver, its Python workers and Java's compiled code need."""
_PROCESSES_MIN = 256
_COLUMNS_MIN = 80


def python(_: Needs) -> Iterator[Finding]:
    """Version and implementation."""
    found = f"{platform.python_version()} ({platform.python_implementation()}, {sys.prefix})"
    is_supported = sys.version_info >= _PYTHON_MIN and platform.python_implementation() == "CPython"
    remedy = f"install CPython {'.'.join(map(str, _PYTHON_MIN))} or later, and Millstream into its own environment"
    yield judged("Python", found, _EVERYTHING, "" if is_supported else remedy)
    system = f"{platform.system()} {platform.release()}, {platform.machine()}, {processors()} processors"
    is_known = platform.system() in ("Linux", "Darwin")
    remedy = "" if is_known else "run it on Linux (on Windows: in WSL 2 or a container)"
    yield judged("System", system, _EVERYTHING, remedy)


def disk(needs: Needs) -> Iterator[Finding]:
    """The disk of the data directory: file system, locks, fsync, free space."""
    place = existing(needs.directory)
    what = "data directories: every commit is on the disk before it counts"
    elsewhere = "choose another place with `millstream run --data-dir DIR`, on a disk of this machine"
    kind = _file_system(place)
    try:
        sync_ms = _sync_ms(place)
    except OSError as error:
        found = f"{place} cannot be written to: {error.strerror}"
        yield Finding("Data disk", CheckState.MISSING, found, what, f"make it writable, or {elsewhere}")
        return
    found = f"{kind} at {place}, fsync takes {sync_ms:.1f} ms"
    remedy = ""
    if kind in _DOUBTFUL:
        found += f"; {_DOUBTFUL[kind]}"
        remedy = elsewhere
    elif sync_ms > _SYNC_SLOW_MS:
        remedy = f"{elsewhere} that is faster, or `--durability process` if power loss does not matter"
    yield judged("Data disk", found, what, remedy, CheckState.WARNING)
    yield _room(place, needs)


def _room(place: Path, needs: Needs) -> Finding:
    free = shutil.disk_usage(place).free
    wanted = needs.storage_bytes / BROKER_SHARE if needs.pipeline else _DISK_SMALL_BYTES
    found = f"{_mib(free)} free at {place}"
    if needs.pipeline:
        found += f"; the pipeline reserves {_mib(needs.storage_bytes)}, and may reserve three quarters of it"
    remedy = ""
    if free < wanted:
        remedy = f"free {_mib(wanted - free)} more, lower `limits.bufferMaxBytes`, or use another disk (`--data-dir`)"
    otherwise = CheckState.MISSING if needs.pipeline else CheckState.WARNING
    return judged("Disk space", found, "buffers between the steps, logs", remedy, otherwise)


def _sync_ms(place: Path) -> float:
    """Median time to write a block durably; locks are tried as well. Raises `OSError`."""
    times = []
    with tempfile.TemporaryFile(dir=place) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for _ in range(_SYNCS):
            begun_s = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun_s)
    return statistics.median(times) * 1000


def _file_system(place: Path) -> str:
    """The kind of file system that a path is on."""
    real = place.resolve()
    held = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    return max(held, key=lambda part: len(part.mountpoint)).fstype if held else "an unknown file system"


def temporary(_: Needs) -> Iterator[Finding]:
    """Directory for the sockets of functions."""
    what = "the sockets of functions and of Spark"
    try:
        with open_socket_directory() as directory:
            yield Finding("Temporary files", CheckState.OK, str(directory.parent), what)
    except InfrastructureError as error:
        yield Finding("Temporary files", CheckState.MISSING, str(error), what, "set TMPDIR as the message says")


def memory(needs: Needs) -> Iterator[Finding]:
    """Available memory."""
    system, limit = psutil.virtual_memory(), usable_memory()
    available = min(system.available, limit)
    wanted = _MEMORY_BYTES + (_SPARK_BYTES if needs.spark else 0)
    limited = f", of which this process may use {_mib(limit)}" if limit < system.total else ""
    found = f"{_mib(available)} available{limited}"
    what = "the broker, workers and functions" + (", and Spark" if needs.spark else "; with reduces, Spark: 2 GiB")
    remedy = ""
    if available < wanted:
        remedy = f"end other programs, or raise the limit: about {_mib(wanted)} are needed; `--workers 1` needs less"
    yield judged("Memory", found, what, remedy, CheckState.WARNING)


def limits(_: Needs) -> Iterator[Finding]:
    """Open files and processes."""
    more_processes = f"`ulimit -u {_PROCESSES_MIN}`, or more, in the shell that starts Millstream"
    for name, kind, least, what, remedy in (
        (
            "Open files",
            resource.RLIMIT_NOFILE,
            FILES_ADVISED,
            "connections, files of sinks and buffers",
            more_files("Millstream"),
        ),
        ("Processes", resource.RLIMIT_NPROC, _PROCESSES_MIN, "workers, functions and their threads", more_processes),
    ):
        soft, _hard = resource.getrlimit(kind)
        is_unlimited = soft == resource.RLIM_INFINITY
        found = "at most any number" if is_unlimited else f"at most {soft:,}"
        yield judged(name, found, what, "" if is_unlimited or soft >= least else remedy, CheckState.WARNING)


def ports(needs: Needs) -> Iterator[Finding]:
    """The loopback, and the ports of the pipeline."""
    what = "the broker, which listens on a free port of 127.0.0.1"
    try:
        free_ports()
        yield Finding("Ports", CheckState.OK, "free ones on 127.0.0.1", what)
    except InfrastructureError as error:
        yield Finding(
            "Ports", CheckState.MISSING, str(error), what, "allow listening on 127.0.0.1 in the system's settings"
        )
    for vertex, host, port in needs.ports:
        why = why_not(port, host)
        remedy = "stop the program that uses it, or choose another `port` in the pipeline file (0 takes a free one)"
        found = f"free on {host}" if why is None else f"{host}: {why}"
        yield judged(f"Port {port}", found, f"vertex {vertex}", "" if why is None else remedy)


def terminal(_: Needs) -> Iterator[Finding]:
    """Encoding and width."""
    encoding = (sys.stdout.encoding or locale.getpreferredencoding()).lower()
    columns = shutil.get_terminal_size().columns
    kind = os.environ.get("TERM", "none") if sys.stdout.isatty() else "none: progress is printed as lines"
    found = f"{encoding}, {kind}" + (f", {columns} columns" if sys.stdout.isatty() else "")
    what = "tables, progress, names in other scripts"
    remedy = ""
    if encoding.replace("-", "") != "utf8":
        remedy = "set LANG=C.UTF-8 (or PYTHONUTF8=1), so that all characters can be shown"
    elif sys.stdout.isatty() and columns < _COLUMNS_MIN:
        remedy = f"make it {_COLUMNS_MIN} columns wide: tables are cut off"
    yield judged("Terminal", found, what, remedy, CheckState.WARNING)


def _mib(size: float) -> str:
    return f"{size / MIB:,.0f} MiB"
