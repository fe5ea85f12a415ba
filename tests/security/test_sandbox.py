"""Functions that try to get out of their sandbox, or past their limits: each is refused, and what is allowed works."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import psutil
import pytest

from millstream import codes, confine
from millstream.sandbox import Confinement, confined, refusal
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import command
from tests.security.conftest import NOBODY, Stranger
from tests.small_disk import give_up
from tests.support.errors import raises

CANNOT = refusal(strict=True, network=False, limits=frozenset())


@pytest.fixture(autouse=True)
def _can_be_held() -> None:
    """A fault of ours looks like a system that cannot: in CI it has to be one that can."""
    if CANNOT is not None:
        give_up(f"there is no sandbox here: {CANNOT}")


NUMBERS = {
    # On x86_64 and on aarch64, which does not have the older ones.
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "mkdir": (83, None), "mkdirat": (258, 34), "mknod": (133, None), "mknodat": (259, 33),
    "creat": (85, None), "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
}  # fmt: skip
"""System calls with which a file can get a mode, or an attribute."""
ATTEMPTS = (
    f"NUMBERS = {NUMBERS!r}\n"
    '''
import ctypes, glob, json, os, pathlib, signal, socket, stat, subprocess, sys, tempfile, threading
import millstream_udf as udf

libc = ctypes.CDLL(None, use_errno=True)


def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def connected(family, address):
    with socket.socket(family) as one:
        one.settimeout(5)
        one.connect(address)


def found_sockets():
    """Of any other program, by any name."""
    own = os.environ["MILLSTREAM_UDF_SOCKET"]
    seen = [line.split()[-1] for line in open("/proc/net/unix") if "/" in line or "@" in line]
    seen += glob.glob("/tmp/**/*.sock", recursive=True) + glob.glob("/run/**", recursive=True)
    return [path for path in seen if os.path.dirname(own) not in path and os.path.exists(path)]


def memory():
    held = []
    while True:
        held.append(bytearray(16 << 20))


SET_ID = {
    # Arguments, whose paths are in /tmp; 0 as the first one is a file descriptor.
    "chmod": (b"/tmp/a", 0o4755),
    "fchmod": (0, 0o2755),
    "fchmodat": (-100, b"/tmp/a", 0o6755),
    "fchmodat2": (-100, b"/tmp/a", 0o4755, 0),
    "mkdir": (b"/tmp/b", 0o2755),
    "mkdirat": (-100, b"/tmp/c", 0o2755),
    "mknod": (b"/tmp/d", 0o104755, 0),
    "mknodat": (-100, b"/tmp/e", 0o104755, 0),
    "creat": (b"/tmp/f", 0o4755),
    "open": (b"/tmp/g", 0o101, 0o4755),
    "openat": (-100, b"/tmp/h", 0o101, 0o2755),
    "openat unnamed": (-100, b"/tmp", 0o20200001, 0o2755),
    "openat2": (-100, b"/tmp/i", (ctypes.c_uint64 * 3)(0o101, 0o4755, 0), 24),
    "setxattr": (b"/tmp/a", b"security.capability", b"\\1\\0\\0\\2" + bytes(16), 20, 0),
    "lsetxattr": (b"/tmp/a", b"user.x", b"x", 1, 0),
    "fsetxattr": (0, b"user.x", b"x", 1, 0),
}


def set_id(name):
    """A program or directory with a set-user or set-group id, or with capabilities."""
    number = NUMBERS[name.partition(" ")[0]][os.uname().machine == "aarch64"]
    arguments = list(SET_ID[name])
    if number is None:
        raise OSError("this architecture does not have it")
    with open("/tmp/a", "w") as file:
        if arguments[0] == 0:
            arguments[0] = file.fileno()
        called(libc.syscall(number, *arguments))


def fill():
    """Bytes that it can write anywhere, as long as there is place."""
    seen = {pathlib.Path(line.split()[1]) for line in open("/proc/self/mounts")}
    places = seen | {path for top in seen for path in top.glob("*") if path.is_dir()}
    total = 0
    for place in sorted(places):
        if str(place).startswith(("/proc", "/sys")):
            continue
        for number in range(100_000):
            size = 512 << 20
            try:
                file = os.open(place / f"filling{number}", os.O_RDWR | os.O_CREAT, 0o666)
            except OSError:
                break
            while size >= 4096:
                try:
                    os.posix_fallocate(file, os.fstat(file).st_size, size)
                    total += size
                except OSError:
                    size //= 2
            os.close(file)
    for place in places:
        for one in place.glob("filling*"):
            one.unlink()
    return total


def attempt(what):
    kind, _, of = what.partition(" ")
    match kind:
        case "read":
            return pathlib.Path(of).read_bytes()[:100] or None
        case "list":
            return os.listdir(of) or None
        case "write":
            return pathlib.Path(of).write_text("written")
        case "remove":
            return os.unlink(of)
        case "local":
            return connected(socket.AF_UNIX, of)
        case "abstract":
            return connected(socket.AF_UNIX, b"\\0" + of.encode())
        case "tcp":
            host, port = of.rsplit(":", 1)
            return connected(socket.AF_INET, (host, int(port)))
        case "udp":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                return one.sendto(b"x", ("192.0.2.1", 53))
        case "vsock":
            return socket.socket(40, socket.SOCK_STREAM)
        case "kill":
            return os.kill(int(of), signal.SIGKILL)
        case "killall":
            # Everything that this user may send a signal to: in its namespace nothing but itself.
            return os.kill(-1, signal.SIGKILL)
        case "ptrace":
            return called(libc.ptrace(16, int(of), 0, 0))
        case "processes":
            return [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())] or None
        case "sockets":
            return found_sockets() or None
        case "namespace":
            return called(libc.unshare(0x10000000))
        case "namespace-by-clone":
            return called(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)) if os.uname().machine == "x86_64" else None
        case "mount":
            return called(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))
        case "remount":
            return called(libc.mount(None, of.encode(), None, 32 | 4096, None))
        case "set-id":
            return set_id(of)
        case "device":
            # The mode that it has: on a host whose device this is, nothing breaks.
            return os.chmod(of, 0o666)
        case "descriptors":
            devices = [one for one in range(3) if stat.S_ISCHR(os.fstat(one).st_mode)]
            return [os.fchmod(one, 0o666) for one in devices]
        case "fill":
            size = fill()
            return size if size > 323 << 20 else None
        case "ring":
            return called(libc.syscall(425, 1, ctypes.create_string_buffer(120)))
        case "raise":
            import resource
            return resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))
        case "processors":
            return os.sched_setaffinity(0, range(os.cpu_count()))
        case "setuid":
            return os.setuid(12345)
        case "memory":
            return memory()
        case "open":
            return [open("/dev/null") for _ in range(200)] and None
    raise SystemExit(f"there is no attempt {what}")


@udf.map
def escape(record):
    what = json.loads(record.value)["what"]
    try:
        gained = attempt(what)
    except (OSError, MemoryError, ValueError) as error:
        return json.dumps({"what": what, "refused": type(error).__name__})
    return json.dumps({"what": what, "refused": None, "gained": repr(gained)})


@udf.map
def bomb(record):
    """Fails on its first record by using all the memory it is given; the others pass."""
    what = json.loads(record.value)["what"]
    if what == "memory":
        memory()
    return json.dumps({"what": what})


@udf.map
def allowed(record):
    """What functions do."""
    scratch = tempfile.NamedTemporaryFile()
    scratch.write(b"kept"); scratch.flush()
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "x").write_text("x")
    assert pathlib.Path(scratch.name).read_bytes() == b"kept"
    pathlib.Path("/dev/shm/x").write_text("shared")
    assert subprocess.run([sys.executable, "-c", "print(40 + 2)"], capture_output=True, text=True).stdout == "42\\n"
    assert subprocess.run(["sh", "-c", "echo $HOME"], capture_output=True, text=True).stdout == "/tmp\\n"
    thread = threading.Thread(target=len, args=("",)); thread.start(); thread.join()
    server = socket.create_server(("127.0.0.1", 0))
    connected(socket.AF_INET, server.getsockname())
    import helper_module
    import numpy
    assert int(numpy.arange(10).sum()) == 45
    return helper_module.shout(pathlib.Path("words.txt").read_text())
'''
)


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    return PipelineFiles(tmp_path)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """Somebody else's server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def program(name: str, attempts: list[str], files: PipelineFiles, *, vertex: str = "try", more: str) -> None:
    """Write a pipeline that gives a function these attempts, a record each."""
    code = files.directory / "code"
    code.mkdir(exist_ok=True)
    (code / "attempts.py").write_text(ATTEMPTS)
    (files.directory / "in.jsonl").write_text("".join(json.dumps({"what": what}) + "\n" for what in attempts))
    files.write(
        "- name: in\n  source: {file: {paths: [in.jsonl]}}\n"
        f"- name: {vertex}\n  udf: {{python: 'attempts.py:{name}', workingDir: code, {more}}}\n"
        + files.file_sink("out"),
        [f"in -> {vertex}", f"{vertex} -> out"],
    )


def outcomes(files: PipelineFiles) -> Mapping[str, str | None]:
    return {row["what"]: row["refused"] for row in files.rows("out")}


@pytest.mark.guarantee("I16")
async def test_a_function_does_not_get_out_of_its_sandbox(
    files: PipelineFiles, tmp_path: Path, listening: socket.socket
) -> None:
    secret = tmp_path / "code" / "token"
    secret.parent.mkdir()
    secret.write_text("secret")
    bystander = tmp_path / "bystander.sock"
    victim = psutil.Process()
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as abstract:
        other.bind(str(bystander))
        other.listen()
        abstract.bind(f"\0millstream-test-{os.getpid()}")
        abstract.listen()
        home = Path.home()
        data = tmp_path / ".millstream" / "p"
        attempts = [
            *(f"read {path}" for path in ("/etc/shadow", home / ".bashrc", data / "pipeline.json", secret)),
            *(f"list {path}" for path in (home / ".ssh", data, data / "broker", "/home", "/var", "/run")),
            f"read {tmp_path / 'pipeline.yaml'}",
            *(f"write {path}" for path in (secret.parent / "attempts.py", secret.parent / "new.py", "/usr/bin/new")),
            *(
                "write /proc/sys/kernel/core_pattern",
                "write /proc/sysrq-trigger",
                f"remove {secret.parent}/attempts.py",
            ),
            *(f"local {bystander}", f"abstract millstream-test-{os.getpid()}", "sockets"),
            *(f"tcp 127.0.0.1:{listening.getsockname()[1]}", "tcp 192.0.2.1:80", "udp", "vsock"),
            *(f"kill {victim.pid}", "killall", f"ptrace {victim.pid}", "processes"),
            *("namespace", "namespace-by-clone", "mount", f"remount {secret.parent}", "remount /usr", "ring"),
            *(f"set-id {call}" for call in (*NUMBERS, "openat unnamed")),
            *("device /dev/null", f"device {secret}", "descriptors", "fill"),
            *("raise", "processors", "setuid", "memory", "open"),
        ]
        program(
            "escape",
            attempts,
            files,
            more="sandbox: strict, env: [{name: TOKEN, value: {file: code/token}}], "
            "limits: {memory: 512Mi, files: 100, cpu: 1}",
        )
        ended = await command(tmp_path, "run", "pipeline.yaml", "--quiet")

    assert ended.exit_code == 0, ended.err
    found = outcomes(files)
    assert set(found) == set(attempts)
    # Those that see nothing, instead of being refused: no signal, no process, no socket, an empty file.
    empty = {"killall", "sockets", "processes", "fill", f"read {secret}", f"list {data}"}
    gained = {row["what"]: row["gained"] for row in files.rows("out") if row["refused"] is None}
    assert set(gained) <= empty
    assert set(gained.values()) == {"None"}
    assert secret.read_text() == "secret"
    assert victim.is_running()


@pytest.mark.guarantee("I16")
async def test_a_sandbox_opened_to_the_network_stays_closed_to_the_rest(
    files: PipelineFiles, tmp_path: Path, listening: socket.socket
) -> None:
    cannot = refusal(strict=True, network=True, limits=frozenset())
    if cannot is not None:
        pytest.skip(cannot)
    bystander = tmp_path / "bystander.sock"
    model = tmp_path / "model"
    model.write_text("weights")
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as abstract:
        other.bind(str(bystander))
        other.listen()
        abstract.bind(f"\0millstream-test-{os.getpid()}")
        abstract.listen()
        closed = [f"local {bystander}", f"abstract millstream-test-{os.getpid()}", "vsock", f"kill {os.getpid()}"]
        opened = [f"tcp 127.0.0.1:{listening.getsockname()[1]}", f"read {model}"]
        program("escape", closed + opened, files, more="sandbox: strict, network: true, readable: [model]")
        ended = await command(tmp_path, "run", "pipeline.yaml", "--quiet")

    assert ended.exit_code == 0, ended.err
    found = outcomes(files)
    assert {what for what in found if found[what] is None} == set(opened)
    assert set(found) == {*closed, *opened}


async def test_what_functions_need_works_in_a_sandbox(files: PipelineFiles, tmp_path: Path) -> None:
    program("allowed", ["once"], files, more="sandbox: strict")
    (tmp_path / "code" / "helper_module.py").write_text("def shout(text):\n    return text.upper()\n")
    (tmp_path / "code" / "words.txt").write_text('{"said": "hello"}')

    ended = await command(tmp_path, "run", "pipeline.yaml", "--quiet")

    assert ended.exit_code == 0, ended.err
    assert files.rows("out") == [{"SAID": "HELLO"}]


async def test_a_record_that_takes_too_much_memory_goes_the_way_of_the_retry_strategy(
    files: PipelineFiles, tmp_path: Path
) -> None:
    program(
        "bomb",
        ["a", "memory", "b"],
        files,
        more="limits: {memory: 512Mi}, retryStrategy: {backoff: {steps: 1}, onFailure: drop}",
    )

    ended = await command(tmp_path, "run", "pipeline.yaml")

    assert ended.exit_code == 0, ended.err
    assert [row["what"] for row in files.rows("out")] == ["a", "b"]
    assert "1 dropped" in ended.out


def test_a_program_that_would_see_the_home_directory_is_refused(tmp_path: Path) -> None:

    with raises(codes.SANDBOX_IMPOSSIBLE):
        confined(["true"], Confinement(strict=True), cwd=Path.home(), sockets=tmp_path)


async def test_validate_and_run_refuse_what_this_system_cannot_hold(files: PipelineFiles, tmp_path: Path) -> None:
    program("escape", ["udp"], files, more="limits: {processes: 10}")
    for action in ("validate", "run"):
        ended = await command(tmp_path, action, "pipeline.yaml")
        if os.getuid() == 0:
            assert ended.exit_code == 2
            assert "spec.vertices[1].udf.limits" in ended.err
            assert "run as another user" in ended.err


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_set_ids_and_no_other_mode(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "6.12.0", "", machine)))
    program = confine._filter(strict=True, affinity=False)
    architecture = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    places = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mkdir": 1, "mkdirat": 2, "mknod": 1}
    places |= {"mknodat": 2, "creat": 1, "open": 2, "openat": 3}
    flags = {"open": 1, "openat": 2}
    for call, numbers in NUMBERS.items():
        number = numbers[machine == "aarch64"]
        if number is None:
            continue
        if call not in places:
            expected = errno.ENOSYS if call == "openat2" else errno.EOPNOTSUPP
            assert filtered(program, architecture, number, [0] * 6) == expected, call
            continue
        for mode in (0o4755, 0o2755, 0o6000, 0o104755, 0o755, 0o1777, 0o100644):
            arguments = [0] * 6
            arguments[places[call]] = mode
            for given in (0o100, 0o101, 0o20200001):
                arguments[flags.get(call, 5)] = given
                outcome = filtered(program, architecture, number, arguments)
                assert outcome == (errno.EPERM if mode & 0o6000 else None), (call, oct(mode), oct(given))
        if call in flags:
            # A call that creates nothing has no mode; the argument may be anything.
            arguments[places[call]], arguments[flags[call]] = 0o7777, 0o200001
            assert filtered(program, architecture, number, arguments) is None
    other = 0xC00000B7 if machine == "x86_64" else 0xC000003E
    assert filtered(program, other, 39, [0] * 6) == errno.EPERM


def filtered(
    program: Sequence[tuple[int, int, int, int]], architecture: int, number: int, arguments: Sequence[int]
) -> int | None:
    """The error with which a filter refuses a call, or None, as the kernel would run it."""
    seen = struct.pack("=IIQ6Q", number, architecture, 0, *arguments)
    place = value = 0
    while True:
        code, if_true, if_false, operand = program[place]
        place += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("=I", seen, operand)
            case 0x15:
                place += if_true if value == operand else if_false
            case 0x35:
                place += if_true if value >= operand else if_false
            case 0x45:
                place += if_true if value & operand else if_false
            case 0x06:
                return None if operand == 0x7FFF0000 else operand & 0xFFFF
            case _:
                raise AssertionError(f"{code:#x} is not an instruction of ours")


# Any program, and any user


def held_as(user: int, folder: Path, held: Confinement, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the system's own, held, as this user."""
    sockets, code = folder / "private" / "sockets", folder / "code"
    for made in (sockets.parent, sockets, code):
        made.mkdir(exist_ok=True)
        os.chown(made, user, user)
    settings = confined(list(arguments), held, cwd=code, sockets=sockets, search=os.defpath)
    script = folder / "confine.py"
    script.write_text(Path(confine.__file__).read_text())
    starter = (
        "import os, sys, subprocess\n"
        f"os.setgroups([]); os.setgid({user}); os.setuid({user})\n"
        f"start = ['/usr/bin/python3', '-I', '-S', '-c', {confine.START!r}, {str(folder)!r}]\n"
        "command = [*start, str(os.getpid()), *sys.argv[1:]]\n"
        "sys.exit(subprocess.run(command).returncode)"
    )
    # What follows the id of the parent process: settings, "--" and the command.
    return subprocess.run(
        ["/usr/bin/python3", "-c", starter, *settings[7:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={"PATH": os.defpath},
    )


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="there is no Python of the system's")


@needs_root
@needs_python
def test_any_user_can_hold_any_program(open_folder: Path) -> None:
    program = (
        "import os, socket\n"
        "print(os.getuid(), os.listdir('/proc') and sorted(p for p in os.listdir('/proc') if p.isdigit()))\n"
        "for place in ('/usr/x', 'x', '/x'):\n"
        "    try:\n        open(place, 'w'); print('wrote', place)\n"
        "    except OSError as error:\n        print(error.errno)\n"
        "open('/tmp/x', 'w').write('x')\n"
        "try:\n    socket.create_connection(('127.0.0.1', 22)); print('out')\n"
        "except OSError as error:\n    print(type(error).__name__)\n"
    )

    done = held_as(NOBODY, open_folder, Confinement(strict=True), "/usr/bin/python3", "-c", program)

    assert done.stdout.split("\n") == [f"{NOBODY} ['1']", "30", "30", "30", "ConnectionRefusedError", ""], done.stderr


@pytest.mark.guarantee("I16")
def test_nothing_that_a_sandbox_writes_is_on_the_host_or_open_to_another_user(
    stranger: Stranger, open_folder: Path, tmp_path: Path
) -> None:
    sockets = open_folder / "private" / "s"
    sockets.mkdir(parents=True)
    sockets.parent.chmod(0o700)
    bystander = tmp_path / "bystander.sock"
    program = (
        "import os, socket, sys\n"
        "own, outside = sys.argv[1:]\n"
        "os.chdir(own)\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('own.sock'); server.listen()\n"
        "open('report', 'w').write('kept'); os.symlink(outside, 'link.sock'); os.symlink('/etc/passwd', 'leak')\n"
        "os.mkfifo('pipe'); os.mkdir('directory')\n"
        "for path in ('.', '..', 'own.sock', 'report'):\n"
        "    try:\n        os.chmod(path, 0o777)\n"
        "    except OSError as error:\n        print(path, error.strerror)\n"
        "print('ready', flush=True)\n"
        "server.accept()\n"
    )
    held = confined(
        ["/usr/bin/python3", "-c", program, str(sockets), str(bystander)],
        Confinement(strict=True),
        cwd=tmp_path,
        sockets=sockets,
    )
    with (
        socket.socket(socket.AF_UNIX) as other,
        subprocess.Popen(held, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running,
    ):
        other.bind(str(bystander))
        other.listen()
        assert running.stdout is not None
        assert running.stderr is not None
        printed = list(takewhile(lambda line: line != "ready\n", running.stdout))
        # The way to its sockets is open to us alone, and leads to nothing else.
        assert printed == [".. Read-only file system\n"]
        assert os.path.islink(sockets)
        assert {"own.sock", "report"} < set(os.listdir(sockets))
        for place in (sockets, os.readlink(sockets)):
            done = stranger.run("print(os.listdir(sys.argv[1]))", place)
            assert "PermissionError" in done.stderr, done
        with socket.socket(socket.AF_UNIX) as client:
            with pytest.raises(OSError, match="symbolic links"):
                client.connect(str(sockets / "link.sock"))
            client.connect(str(sockets / "own.sock"))
        assert running.wait(30) == 0, running.stderr.read()

    assert {path.name: (path.read_text(), path.lstat().st_mode) for path in sockets.iterdir()} == {
        "report": ("kept", 0o100600)
    }


@needs_root
@needs_python
@pytest.mark.parametrize("strict", [False, True])
def test_a_fork_bomb_ends_at_the_limit_and_leaves_nothing(open_folder: Path, strict: bool) -> None:
    program = (
        "import os, time\n"
        "started = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0:\n            time.sleep(60); os._exit(0)\n"
        "        started += 1\n"
        "except BlockingIOError:\n    print(started)\n"
        f"if not {strict}:\n    os.killpg(0, 9)\n"
    )

    held = Confinement({"processes": 20}, strict=strict)
    done = held_as(NOBODY, open_folder, held, "/usr/bin/setsid", "-w", "/usr/bin/python3", "-uc", program)

    assert done.stdout, done.stderr
    assert 10 <= int(done.stdout) < 20
    left = [one for one in psutil.process_iter(["uids", "cmdline"]) if program in (one.info["cmdline"] or ())]
    assert not left


@needs_python
def test_privileges_are_never_gained(tmp_path: Path) -> None:
    said = subprocess.run(
        confined(["/usr/bin/cat", "/proc/self/status"], Confinement(), cwd=tmp_path, sockets=tmp_path),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert "NoNewPrivs:\t1" in said.stdout


@pytest.mark.guarantee("I16")
async def test_a_sandbox_ends_with_its_processes_and_they_with_it(tmp_path: Path) -> None:
    """Whichever of the two processes dies, nothing is left; and the code is that of the command."""
    sockets = tmp_path / "private" / "s"
    sockets.mkdir(parents=True)

    def start_held(*arguments: str) -> subprocess.Popen[bytes]:
        held = confined(list(arguments), Confinement(strict=True), cwd=tmp_path, sockets=sockets)
        return subprocess.Popen(held, stdout=subprocess.PIPE, start_new_session=True)

    with start_held("/bin/sh", "-c", "exit 7") as ended:
        assert ended.wait(30) == 7
    script = "trap 'exit 5' TERM; echo ready; while true; do /bin/sleep 0.1; done"
    for number, expected in ((signal.SIGTERM, 5), (signal.SIGKILL, -signal.SIGKILL)):
        with start_held("/bin/sh", "-c", script) as caught:
            assert caught.stdout is not None
            assert caught.stdout.readline() == b"ready\n"
            family = psutil.Process(caught.pid).children(recursive=True)
            os.killpg(caught.pid, number) if number == signal.SIGTERM else caught.kill()
            assert caught.wait(30) == expected
        assert not psutil.wait_procs(family, 10)[1]
    # Process 1 of a namespace gets no signal that it does not catch; it ends anyway.
    with start_held("/bin/sh", "-c", "echo ready; exec /bin/sleep 60") as deaf:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == b"ready\n"
        os.killpg(deaf.pid, signal.SIGTERM)
        assert deaf.wait(30) == -signal.SIGKILL
