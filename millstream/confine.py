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
and libraries, its code and what the pipeline file adds, read-only; and /tmp, /dev/shm and the directory of its sockets,
in memory and bounded. Nothing that it writes gets into a file system of the host.

    host      <private>/sockets ─► /proc/<this process>/fd/N ─┐ the directory in memory, which this process holds open
    sandbox   <private>/sockets ══════════════════════════════╛

So the socket has the same path on both sides, but only a process that may trace this one gets there. When the command
has ended, the regular files of that directory are kept, at its path. If a step fails, the error goes to standard error
and the exit code is 125: nothing runs partly confined.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import stat
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
SOCKETS_BYTES = 2 << 20
"""Size of the directory of sockets in a sandbox, in memory."""
_SCRATCH_FILES, _SHARED_FILES, _SOCKETS_FILES = 1 << 16, 1 << 12, 1 << 8
"""Files, directories and links in each of them: they take the kernel's memory, even if they are empty."""

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_NOSYMFOLLOW, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 8, 256, 4096, 16384, 1 << 19
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8
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
_MODES = {
    # The position of the mode among the arguments, and that of the flags if they decide whether the call has a mode.
    "chmod": (90, None, 1, None), "fchmod": (91, 52, 1, None), "fchmodat": (268, 53, 2, None),
    "fchmodat2": (452, 452, 2, None), "mkdir": (83, None, 1, None), "mkdirat": (258, 34, 2, None),
    "mknod": (133, None, 1, None), "mknodat": (259, 33, 2, None), "creat": (85, None, 1, None),
    "open": (2, None, 2, 1), "openat": (257, 56, 3, 2),
}  # fmt: skip
"""Calls that can give a file a mode: number on each architecture, position of the mode, position of the flags.
Set-user and set-group ids are refused in each, because a program with one would be the runner's."""
_SET_ID = stat.S_ISUID | stat.S_ISGID
_CREATES = 0o100 | 0o20000000
"""Flags with which `open` creates a file: O_CREAT, and that of O_TMPFILE."""
_UNSUPPORTED = {
    # The mode of openat2 is in memory, which a filter cannot read. C libraries use openat if openat2 is missing.
    "openat2": (437, 437, errno.ENOSYS),
    # Extended attributes can be capabilities of a program, and access lists. File systems may lack them.
    "setxattr": (188, 5, errno.EOPNOTSUPP), "lsetxattr": (189, 6, errno.EOPNOTSUPP),
    "fsetxattr": (190, 7, errno.EOPNOTSUPP), "setxattrat": (463, 463, errno.EOPNOTSUPP),
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


def _read_only(target: str, *, deep: bool = True, devices: bool = False, programs: bool = True) -> None:
    """Adds flags to a mount: unlike a remount, this cannot clear a locked flag."""
    attributes = _ATTR_RDONLY | _ATTR_NOSUID | (0 if devices else _ATTR_NODEV) | (0 if programs else _ATTR_NOEXEC)
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
    sockets = settings["sockets"]
    base = os.path.dirname(sockets)
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
    bounds = f"size={SCRATCH_BYTES},nr_inodes={_SCRATCH_FILES},mode=1777"
    _mount("tmpfs", "/new/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, bounds)
    bounds = f"size={SHARED_BYTES},nr_inodes={_SHARED_FILES},mode=1777"
    _mount("tmpfs", "/new/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, bounds)
    for source, target in settings["read"]:
        _bind(f"/old{source}", f"/new{target}")
        _read_only(f"/new{target}")
    for name in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/old/dev/{name}", f"/new/dev/{name}")
        # A device can be written nevertheless. Its mode cannot be changed, which is that of the host's device.
        _read_only(f"/new/dev/{name}", devices=True, programs=False)
    for name, text in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(text, f"/new/dev/{name}")
    _mount("proc", "/new/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    # Root can write the kernel's settings in it even without capabilities.
    _read_only("/new/proc")
    _hide(settings["hidden"])
    _mount_sockets(base, sockets)
    _read_only("/new", deep=False, devices=True)
    _done("leaving the old file system", _libc.umount2(b"/old", _MNT_DETACH))
    os.chdir("/new")
    _pivot(".", ".")
    _done("leaving the old file system", _libc.umount2(b".", _MNT_DETACH))
    os.chdir(settings["cwd"])


def _mount_sockets(base: str, sockets: str) -> None:
    """The directory of sockets: in memory, and below a directory that has nothing else in it."""
    os.makedirs(f"/new{base}", 0o755, exist_ok=True)
    _mount("tmpfs", f"/new{base}", "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=4k,mode=755")
    os.mkdir(f"/new{sockets}", 0o700)
    # A link in it would lead the processes outside, which connect to a socket, to a file of the host.
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_NOSYMFOLLOW
    _mount("tmpfs", f"/new{sockets}", "tmpfs", flags, f"size={SOCKETS_BYTES},nr_inodes={_SOCKETS_FILES},mode=700")
    _read_only(f"/new{base}", deep=False)


def _hide(paths: list[str]) -> None:
    for path in paths:
        target = f"/new{path}"
        if os.path.isdir(target):
            _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=4k,mode=500")
            _read_only(target, deep=False)
        elif os.path.exists(target):
            _mount("/old/dev/null", target, None, _MS_BIND)
            _read_only(target, devices=True, programs=False)


def _pivot(new: str, old: str) -> None:
    _done("a file system of its own", _libc.syscall(_number("pivot_root"), os.fsencode(new), os.fsencode(old)))
    if new != ".":
        os.chdir("/")


def _use_own_null() -> None:
    """Opens the sandbox's own null device in place of the host's, whose mode root could change through a descriptor."""
    own = os.open("/dev/null", os.O_RDWR)
    device = os.fstat(own).st_rdev
    for descriptor in range(3):
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == device:
            os.dup2(own, descriptor)
    os.close(own)


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
if TYPE_CHECKING:
    _Instruction = tuple[int, int, int, int]
    """Code, jump if true, jump if false, operand."""


def _filter(*, strict: bool, affinity: bool) -> list[_Instruction]:
    """The filter's instructions."""
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
        for *numbers, error in _UNSUPPORTED.values():
            program += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERRNO | error)]
        program += _without_set_id(column, refuse)
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


def _without_set_id(column: int, refuse: _Instruction) -> list[_Instruction]:
    """Refuses modes with a set-user or set-group id, and allows the other ones of these calls."""
    program: list[_Instruction] = []
    for *numbers, mode, flags in _MODES.values():
        if (number := numbers[column]) is not None:
            with_flags = [] if flags is None else [(_LOAD, 0, 0, 16 + 8 * flags), (_ANY_BIT, 0, 3, _CREATES)]
            program += [(_EQUAL, 0, 4 + len(with_flags), number), *with_flags]
            program += [(_LOAD, 0, 0, 16 + 8 * mode), (_ANY_BIT, 0, 1, _SET_ID), refuse, (_RETURN, 0, 0, _ALLOW)]
    return program


def _install_filter(*, strict: bool, affinity: bool) -> None:
    instructions = b"".join(struct.pack("=HBBI", *one) for one in _filter(strict=strict, affinity=affinity))
    code = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(code))
    _prctl("a filter of system calls", _PR_SET_SECCOMP, 2, ctypes.create_string_buffer(program, len(program)))


def _limit(limits: dict[str, int]) -> None:
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
        os.sched_setaffinity(0, (processors[first:] + processors[:first])[: limits["cpu"]])


# The processes


def _forbid_core_files() -> None:
    """See `millstream.die_with_parent`, which this program cannot import."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


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


def _lead_to_sockets(inner: int, sockets: str) -> int:
    """Makes the path of the directory of sockets lead to the sandbox's own. Returns that directory's descriptor."""
    directory = os.open(f"/proc/{inner}/root{sockets}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    # A descriptor and not the id of the command: another program may get the id of one that has ended.
    if os.path.islink(sockets):
        os.unlink(sockets)
    else:
        os.rmdir(sockets)
    os.symlink(f"/proc/{os.getpid()}/fd/{directory}", sockets)
    return directory


def _keep_files(directory: int, sockets: str) -> None:
    """Replaces the way to the sandbox's directory by the regular files in it: what the command has reported there."""
    os.unlink(sockets)
    os.mkdir(sockets, 0o700)
    for name in os.listdir(directory):
        if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            continue
        # All of its processes have ended, so that the name stays what it is.
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
        new = os.open(f"{sockets}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(source, "rb") as file, open(new, "wb") as kept:
            kept.write(file.read(SOCKETS_BYTES))


def _stay_outside(settings: dict[str, Any], inner: int, from_inside: int, to_inside: int) -> int:
    """Lets the command begin, waits for it, and ends as it does. Returns its exit code."""

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
    sockets = settings["sockets"]
    if not os.read(from_inside, 1):
        # It has said why.
        return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
    directory = _lead_to_sockets(inner, sockets)
    if settings["check"]:
        # The caller tries the way, and closes our standard input.
        os.write(1, b"\n")
        os.read(0, 1)
    os.write(to_inside, b"\0")
    _, status = os.waitpid(inner, 0)
    try:
        _keep_files(directory, sockets)
    except OSError as error:
        # They are removed when the caller ends, or there is no space for them.
        print(f"files of the sandbox are not kept: {error}", file=sys.stderr)
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return os.waitstatus_to_exitcode(status)


def _enter(settings: dict[str, Any], inside: int, outside: int) -> None:
    """Confines the command's own process, which still has its privileges: everything up to the command. Writes to
    `inside` when it is confined, and returns when the outer process, which is at the other end of `outside`, agrees."""
    limits = settings["limits"]
    if not settings["network"]:
        _raise_loopback()
    _enter_file_system(settings)
    _use_own_null()
    _drop_capabilities()
    _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    if settings["network"]:
        _leave_abstract_sockets()
    _limit(limits)
    _install_filter(strict=True, affinity="cpu" in limits)
    _die_with_parent()
    os.write(inside, b"\0")
    # The outer process may have died before the line above the last one; then no signal would end this one.
    if not os.read(outside, 1):
        os._exit(NOT_RUNNABLE)


def _sandboxed(settings: dict[str, Any], command: list[str]) -> int:
    _unshare(_CLONE_NEWPID | _CLONE_NEWIPC | _CLONE_NEWUTS | (0 if settings["network"] else _CLONE_NEWNET))
    # The new user namespace has cleared the setting.
    _die_with_parent()
    from_inside, inside = os.pipe()
    outside, to_inside = os.pipe()
    inner = os.fork()
    if inner:
        os.close(inside)
        os.close(outside)
        return _stay_outside(settings, inner, from_inside, to_inside)
    os.close(from_inside)
    os.close(to_inside)
    try:
        _enter(settings, inside, outside)
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
    _forbid_core_files()
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
