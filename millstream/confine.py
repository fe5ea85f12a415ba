"""Starts a function's command confined: it cannot outlive its parent, gain privileges, or exceed its limits.

    python -I -S -c <START> <directory of this module> <parent's process id> <settings as JSON> -- command argument ...

Above it: `millstream.sandbox`, which writes the settings. Below it: the kernel. It imports nothing of Millstream,
because it runs at every start of a function, before the command (see `millstream.die_with_parent`).

    always     dies with its parent; no new privileges; no core files
    limits     RLIMIT_DATA, RLIMIT_NOFILE, a set of processors, and RLIMIT_NPROC in a user namespace of its own
    strict     namespaces of its own for users, mounts, processes, IPC, host name and network; no capabilities;
               a filter of system calls; with the host's network a Landlock domain for abstract sockets

A strict sandbox has two processes. This one stays outside, waits, and ends as the command does. The command is process
1 of its namespace, so everything that it has started ends with it. The command sees a file system of its own: programs
and libraries, its code and what the pipeline file adds, read-only; /tmp and /dev/shm, in memory and bounded; and the
directory of its socket. If a step fails, the error goes to standard error and the exit code is 125: nothing runs
partly confined.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

START = "import sys; sys.path.append(sys.argv.pop(1)); import confine; sys.exit(confine.main(sys.argv[1:]))"
"""What the interpreter runs. As a module, this file is compiled once, not at each start. The standard library is first
in the search path."""
NOT_HELD = 125
"""Exit code when this system cannot confine the command as required."""
NOT_RUNNABLE = 126
NOT_FOUND = 127
SCRATCH_BYTES = 256 << 20
"""Size of /tmp in a sandbox, in memory."""
SHARED_BYTES = 64 << 20
"""Size of /dev/shm in a sandbox, in memory."""

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 442, 444, 446
LANDLOCK_SCOPES_ABI = 6
"""Version of Landlock that keeps a process from abstract sockets outside its domain (Linux 6.12)."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the numbers below, and the architecture's id in system call filters."""
_NUMBERS = {
    # Calls that create namespaces and mounts: a new namespace would return capabilities, and expose more of the
    # kernel.
    "unshare": (272, 97), "setns": (308, 268), "clone3": (435, 435), "clone": (56, 220), "chroot": (161, 51),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442),
    # Things that namespaces do not isolate: keys, and the kernel's programs, counters and modules.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273),
    # io_uring performs operations that bypass the filter.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "socket": (41, 198), "socketpair": (53, 199), "sched_setaffinity": (203, 122), "capset": (126, 91),
}  # fmt: skip
_FAMILIES = (1, 2, 10, 16)
"""Socket families that a function may use: local, IPv4, IPv6, netlink. Others (vsock) bypass a network namespace."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Refused(Exception):
    """A step of the confinement failed."""


def _done(what: str, result: int) -> int:
    if result < 0:
        raise _Refused(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _column() -> tuple[int, int]:
    found = _ARCHITECTURES.get(os.uname().machine)
    if found is None or sys.platform != "linux":
        raise _Refused(f"there is no sandbox for {sys.platform} on {os.uname().machine}")
    return found


def _number(name: str) -> int:
    return _NUMBERS[name][_column()[0]]


def _prctl(what: str, option: int, value: int = 0, more: Any = 0) -> None:
    _done(what, _libc.prctl(option, ctypes.c_ulong(value), more, 0, 0))


# Users and namespaces


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _unshare(flags: int) -> None:
    """Enters new namespaces, as the same user and group."""
    user, group = os.geteuid(), os.getegid()
    _done("namespaces of its own (unshare)", _libc.unshare(flags | _CLONE_NEWUSER))
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError as error:
        raise _Refused(f"a user namespace of its own: {error.strerror}") from error


def _raise_loopback() -> None:
    """Brings up the loopback interface, which is down in a new network namespace: a function may talk to itself."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1 | 64))


# The file system


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    _done(
        f"mounting {target}",
        _libc.mount(
            source.encode(),
            os.fsencode(target),
            kind and kind.encode(),
            ctypes.c_ulong(flags),
            data.encode() or None,
        ),
    )


def _read_only(target: str, *, deep: bool = True, devices: bool = False) -> None:
    """Adds flags to a mount: unlike a remount, this cannot clear a locked flag."""
    attributes = _ATTR_RDONLY | _ATTR_NOSUID | (0 if devices else _ATTR_NODEV)
    change = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if deep else 0
    _done(
        f"making {target} read-only",
        _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, ctypes.byref(change), 32),
    )


def _bind(source: str, target: str) -> None:
    if not os.path.lexists(target):
        if os.path.isdir(source):
            os.makedirs(target, 0o755)
        else:
            os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    _mount(source, target, None, _MS_BIND | _MS_REC)


def _enter_file_system(settings: dict[str, Any]) -> None:
    """Replaces the file system by one of its own. Meanwhile, the old one is below /old, and the new one below /new."""
    base = settings["sockets"]
    # Not earlier: the process that waits outside continues to see the host's file system.
    _done("a file system of its own (unshare)", _libc.unshare(_CLONE_NEWNS))
    _mount("none", "/", None, _MS_REC | _MS_SLAVE)
    _mount("tmpfs", base, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"{base}/old", 0o700)
    os.mkdir(f"{base}/new", 0o755)
    _pivot(base, f"{base}/old")
    _mount("tmpfs", "/new", "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4m,mode=755")
    for target, text in settings["links"]:
        os.makedirs(os.path.dirname(f"/new{target}"), 0o755, exist_ok=True)
        os.symlink(text, f"/new{target}")
    for name in ("tmp", "dev/shm", "proc"):
        os.makedirs(f"/new/{name}", 0o755, exist_ok=True)
    _mount("tmpfs", "/new/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={SCRATCH_BYTES},mode=1777")
    _mount("tmpfs", "/new/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, f"size={SHARED_BYTES},mode=1777")
    for source, target in settings["read"]:
        _bind(f"/old{source}", f"/new{target}")
        _read_only(f"/new{target}")
    for name in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/old/dev/{name}", f"/new/dev/{name}")
    for name, text in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(text, f"/new/dev/{name}")
    _mount("proc", "/new/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    # Root can write the kernel's settings in it even without capabilities.
    _read_only("/new/proc")
    _hide(settings["hidden"])
    _bind(f"/old{base}", f"/new{base}")
    _read_only("/new", deep=False, devices=True)
    _done("leaving the old file system", _libc.umount2(b"/old", _MNT_DETACH))
    os.chdir("/new")
    _pivot(".", ".")
    _done("leaving the old file system", _libc.umount2(b".", _MNT_DETACH))
    os.chdir(settings["cwd"])


def _hide(paths: list[str]) -> None:
    for path in paths:
        target = f"/new{path}"
        if os.path.isdir(target):
            _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4k,mode=500")
            _read_only(target, deep=False)
        elif os.path.exists(target):
            _mount("/old/dev/null", target, None, _MS_BIND)


def _pivot(new: str, old: str) -> None:
    _done("a file system of its own", _libc.syscall(_number("pivot_root"), os.fsencode(new), os.fsencode(old)))
    if new != ".":
        os.chdir("/")


# Privileges and system calls


def _drop_capabilities() -> None:
    for number in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    _done("giving up capabilities", _libc.syscall(_number("capset"), ctypes.byref(header), ctypes.byref(none)))


def landlock_abi() -> int:
    """The kernel's version of Landlock; 0 if it has none."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def _leave_abstract_sockets() -> None:
    if landlock_abi() < LANDLOCK_SCOPES_ABI:
        raise _Refused(
            f"`network` in a sandbox needs Landlock {LANDLOCK_SCOPES_ABI} (Linux 6.12), which keeps the function from "
            f"abstract sockets of other programs; this kernel has {landlock_abi() or 'none'}"
        )
    # The ruleset does not restrict files or ports; it restricts abstract sockets and signals to the domain.
    rules = (ctypes.c_uint64 * 3)(0, 0, 1 | 2)
    ruleset = _done("Landlock", _libc.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), ctypes.c_size_t(24), 0))
    _done("Landlock", _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def _filter(*, strict: bool, affinity: bool) -> list[tuple[int, int, int, int]]:
    """The filter's instructions (code, jump if true, jump if false, operand)."""
    column, architecture = _column()
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    # Another architecture's calls (32-bit, x32) have other numbers.
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), refuse, (_LOAD, 0, 0, 0)]
    program += [(_AT_LEAST, 0, 1, 0x40000000), refuse]
    refused = [name for name in _NUMBERS if name not in ("socket", "socketpair", "clone", "clone3", "capset")]
    refused = [name for name in refused if (affinity if name == "sched_setaffinity" else strict)]
    for name in refused:
        program += [(_EQUAL, 0, 1, _NUMBERS[name][column]), refuse]
    if strict:
        # The flags of clone3 are in memory, which a filter cannot read. C libraries use clone if clone3 is missing.
        program += [(_EQUAL, 0, 1, _number("clone3")), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
        namespaces = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS
        program += [(_EQUAL, 0, 4, _number("clone")), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, namespaces), refuse]
        program += [(_RETURN, 0, 0, _ALLOW)]
        program += [(_EQUAL, 1, 0, _number("socket")), (_EQUAL, 0, len(_FAMILIES) + 3, _number("socketpair"))]
        program += [(_LOAD, 0, 0, 16)]
        program += [(_EQUAL, len(_FAMILIES) - place, 0, family) for place, family in enumerate(_FAMILIES)]
        program += [(_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _install_filter(*, strict: bool, affinity: bool) -> None:
    instructions = b"".join(struct.pack("=HBBI", *one) for one in _filter(strict=strict, affinity=affinity))
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(code))
    _prctl("a filter of system calls", _PR_SET_SECCOMP, 2, ctypes.create_string_buffer(program, len(program)))


def _limit(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kinds = {
        "memory": resource.RLIMIT_DATA,
        "processes": resource.RLIMIT_NPROC,
        "files": resource.RLIMIT_NOFILE,
    }
    if "processes" in limits:
        if os.geteuid() == 0:
            raise _Refused("limits.processes: the kernel does not hold root to it; run as another user")
        if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
            raise _Refused("limits.processes needs Linux 5.14, which counts processes by user namespace")
    for name, kind in kinds.items():
        if name in limits:
            try:
                resource.setrlimit(kind, (limits[name], limits[name]))
            except (OSError, ValueError) as error:
                raise _Refused(f"limits.{name} {limits[name]}: {error}") from error
    if "cpu" in limits:
        # The process id decides which ones, so that not all functions run on the first processors.
        processors = sorted(os.sched_getaffinity(0))
        first = os.getpid() % len(processors)
        chosen = (processors[first:] + processors[:first])[: limits["cpu"]]
        os.sched_setaffinity(0, chosen)


# The processes


def _die_with_parent() -> None:
    _prctl("dying with its parent", _PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"{command[0]}: command not found", file=sys.stderr)
        os._exit(NOT_FOUND)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(NOT_RUNNABLE)


def _catches(process: int, number: int) -> bool:
    with open(f"/proc/{process}/status", encoding="utf-8") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)


def _stay_outside(inner: int) -> int:
    """Waits for the command, and ends as it does. Returns its exit code."""

    def forward(number: int, _: object) -> None:
        # The command gets the signal, too. But the kernel delivers to process 1 only signals that it has a handler for.
        try:
            if not _catches(inner, number):
                os.kill(inner, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            # The command has just ended.
            return

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    _, status = os.waitpid(inner, 0)
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return os.waitstatus_to_exitcode(status)


def _enter(settings: dict[str, Any], outer: int) -> None:
    """Confines the command's own process, which still has its privileges: everything up to the command."""
    limits = settings["limits"]
    if not settings["network"]:
        _raise_loopback()
    _enter_file_system(settings)
    _drop_capabilities()
    _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    if settings["network"]:
        _leave_abstract_sockets()
    _limit(limits)
    _install_filter(strict=True, affinity="cpu" in limits)
    _die_with_parent()
    # The outer process may have died before the line above; then no signal would end this one.
    if select.select([outer], [], [], 0)[0]:
        os._exit(NOT_RUNNABLE)


def _sandboxed(settings: dict[str, Any], command: list[str]) -> int:
    own = _CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS | (0 if settings["network"] else _CLONE_NEWNET)
    _unshare(own)
    # The new user namespace has cleared the setting.
    _die_with_parent()
    outer, held_open = os.pipe()
    inner = os.fork()
    if inner:
        os.close(outer)
        return _stay_outside(inner)
    os.close(held_open)
    try:
        _enter(settings, outer)
    except (_Refused, OSError) as error:
        _refuse(error)
    if settings["check"]:
        os._exit(0)
    _run(command)


def _refuse(error: Exception) -> NoReturn:
    print(f"this system cannot hold the function as `sandbox` or `limits` asks for: {error}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(NOT_HELD)


def main(arguments: list[str]) -> int:
    """`arguments` are the parent's process id, the settings, "--", and the command. Returns the exit code."""
    parent, text, _, *command = arguments
    settings: dict[str, Any] = {}
    if text != "{}":
        import json

        settings = json.loads(text)
    limits = settings.get("limits", {})
    strict = settings.get("strict", False)
    try:
        if sys.platform == "linux":
            _die_with_parent()
            _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
        elif settings:
            raise _Refused("limits and sandboxes need Linux")
        # The parent may have died before the line above: then the signal never comes.
        if os.getppid() != int(parent):
            return NOT_RUNNABLE
        if strict:
            return _sandboxed(settings, command)
        if "processes" in limits:
            _unshare(0)
            _die_with_parent()
        if settings:
            _limit(limits)
        if "cpu" in limits:
            _install_filter(strict=False, affinity=True)
    except (_Refused, OSError) as error:
        _refuse(error)
    if os.getppid() != int(parent):
        return NOT_RUNNABLE
    if settings.get("check"):
        return 0
    _run(command)
