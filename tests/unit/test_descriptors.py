"""Descriptors as a parent leaves them, and what becomes of output that is not taken."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream.descriptors import ESCAPED, OutputDescriptor, write_lines
from millstream.printable import printable_output

LINE = b"x" * 99 + b"\n"


def test_a_file_that_is_full_keeps_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LINE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with path.open("ab", buffering=0) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (350, before[1]))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                write_lines(file.fileno(), 10 * LINE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert path.read_bytes() == 3 * LINE
        write_lines(file.fileno(), LINE)
    assert path.read_bytes() == 4 * LINE


def test_a_pipe_that_another_process_made_non_blocking_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(reader, "rb") as read, os.fdopen(writer, "wb", buffering=0) as written:

        def write() -> None:
            write_lines(writer, 5000 * LINE)
            written.close()

        thread = threading.Thread(target=write)
        thread.start()
        assert read.read() == 5000 * LINE
        thread.join()


@pytest.mark.parametrize("may_be_lost", [False, True])
def test_an_error_is_raised_and_remembered_unless_it_is_only_progress(may_be_lost: bool) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        output = OutputDescriptor(full.fileno(), may_be_lost=may_be_lost)
        if may_be_lost:
            assert output.write(LINE) == len(LINE)
            assert output.error is None
            return
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as raised:
            output.write(LINE)
        assert output.error is raised.value


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_stays_the_same_json_in_any_encoding(encoding: str) -> None:
    value = "grüße ☃ \U0001f600"
    printed = json.dumps(value, ensure_ascii=False).encode(encoding, ESCAPED)
    assert json.loads(printed.decode(encoding)) == value


def test_standard_output_takes_any_text_in_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with printable_output() as printed:
            sys.stdout.write('"é"\n')
            sys.stdout.flush()
    assert printed.error is None
    assert (tmp_path / "out").read_text() == '"\\u00e9"\n'


@pytest.mark.process
def test_closed_descriptors_are_opened_and_inherited() -> None:
    code = (
        "from millstream.descriptors import reopen_closed\n"
        "import os, subprocess, sys\n"
        "reopen_closed()\n"
        "print('out', flush=True); print('err', file=sys.stderr, flush=True)\n"
        "assert sys.stdin.read() == ''\n"
        "print(*(os.get_inheritable(number) for number in (0, 1, 2)), file=open(sys.argv[1], 'w'))\n"
    )
    reader, writer = os.pipe()
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" "/dev/fd/$2" <&- >&- 2>&-', sys.executable, code, str(writer)],
        pass_fds=[writer],
        check=False,
    )
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert (done.returncode, answer.read()) == (0, "True True True\n")
