"""A function that waits for a debugger: an attached one runs code as its user, so no other user may attach one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from millstream.ports import free_ports
from millstream_udf import debugging, same_user
from tests.mesh.test_debugger import attached
from tests.security.conftest import Stranger

FUNCTION = """
import sys, time
from millstream_udf.debugging import wait_for_debugger
print("begun", flush=True)
wait_for_debugger()
print("attached", flush=True)
sys.stdin.read()
"""
ATTACK = """
import re
for port in map(int, sys.argv[1:]):
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.settimeout(60)
        body = b'{"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "debugpy"}}'
        try:
            one.sendall(b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
            received = one.recv(1)
        except (BrokenPipeError, ConnectionResetError):
            received = b""
        print(received)
"""


def listening() -> set[int]:
    """Ports of the loopback interface at which debuggers of this user listen."""
    return {
        entry.laddr.port
        for entry in psutil.net_connections("tcp")
        if entry.laddr and entry.status == psutil.CONN_LISTEN and entry.pid and "debugpy" in _command(entry.pid)
    }


def _command(pid: int) -> str:
    """Empty if the process has ended: other tests have processes, too."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


async def test_a_debugger_of_another_user_is_not_accepted_and_one_of_this_user_is(
    stranger: Stranger, tmp_path: Path
) -> None:
    pytest.importorskip("debugpy")
    port = free_ports()
    (tmp_path / "f.py").write_text(FUNCTION)
    with (
        subprocess.Popen(  # noqa: ASYNC220  # it is read in other threads
            [sys.executable, "f.py"],
            cwd=tmp_path,
            env={**os.environ, debugging.PORT_VARIABLE: str(port)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as function,
        ExitStack() as ending,
    ):
        # If the test fails, it still waits.
        ending.callback(function.kill)
        assert function.stdout is not None
        assert function.stdin is not None
        assert await asyncio.to_thread(function.stdout.readline) == "begun\n"
        async with asyncio.timeout(60):
            # That of editors, and that of the function's own process.
            while port not in (ports := listening()) or len(ports) < 2:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)
        done = stranger.run(ATTACK, *map(str, ports))
        assert done.stdout.split() == ["b''"] * len(ports), done
        async with attached(port, tmp_path / "f.py"):
            assert await asyncio.to_thread(function.stdout.readline) == "attached\n"
            function.stdin.close()
            assert await asyncio.to_thread(function.wait, 60) == 0


def test_a_connection_belongs_to_the_user_of_its_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            assert same_user.is_own(accepted)
            # A process may have sent something and be gone: then its user is no longer known.
            client.close()
            assert not same_user.is_own(accepted)
            accepted.close()
        with socket.socket(socket.AF_INET6) as mapped:
            try:
                mapped.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
            except OSError:
                pytest.skip("there is no IPv6 here")
            accepted, _ = server.accept()
            assert same_user.is_own(accepted)
            accepted.close()


ROW = "   1: 0100007F:{} 0100007F:162E {} 00000000:00000000 00:00000000 00000000  1000        0 {} 1 0 20 4 30 10 -1"


def test_only_an_open_connection_has_a_user() -> None:
    open_one = ROW.format("D431", "01", "4242")
    assert same_user.user_of([open_one], "0100007F:D431", "0100007F:162E") == 1000
    closed = [ROW.format("D431", "08", "4242"), ROW.format("D431", "01", "0"), ROW.format("D432", "01", "4242")]
    assert same_user.user_of(closed, "0100007F:D431", "0100007F:162E") is None
    other = open_one.replace("0100007F:D431", "000080FE00000000FFFF0000" + "0100007F:D431")
    assert same_user.user_of([other], "0100007F:D431", "0100007F:162E") is None


def test_without_the_kernels_table_nothing_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(debugging.PORT_VARIABLE, "5678")
    monkeypatch.setattr(debugging, "is_supported", lambda: False)
    with pytest.raises(SystemExit):
        debugging.wait_for_debugger()
    assert "every user of this machine" in capsys.readouterr().err
