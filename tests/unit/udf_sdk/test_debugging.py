"""Waiting for a debugger that is not there, and breakpoints without one."""

from __future__ import annotations

import bdb
import logging
import sys

import pytest

from millstream_udf import debugging
from millstream_udf.failures import summary


def test_without_debugpy_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(debugging.PORT_VARIABLE, "5678")
    monkeypatch.setitem(sys.modules, "debugpy", None)
    with pytest.raises(SystemExit) as ended:
        debugging.wait_for_debugger()
    assert ended.value.code == 2
    assert "-m pip install debugpy`" in capsys.readouterr().err


def test_nothing_waits_where_it_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(debugging.PORT_VARIABLE, raising=False)
    debugging.wait_for_debugger()


def test_a_breakpoint_says_so_once_for_each_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.delenv(debugging.PORT_VARIABLE, raising=False)
    monkeypatch.setenv("MILLSTREAM_VERTEX", "price")
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    debugging.explain_breakpoints()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            breakpoint()  # noqa: T100
        breakpoint()  # noqa: T100
    assert len(caplog.messages) == 2
    assert "test_debugging.py:" in caplog.messages[0]
    assert "--debug-function price` waits for a debugger" in caplog.messages[0]


def test_a_hook_of_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    before = sys.breakpointhook
    debugging.explain_breakpoints()
    assert sys.breakpointhook is before


def test_pdb_that_found_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_VERTEX", "price")
    assert summary(bdb.BdbQuit()).startswith("pdb cannot be used here: a function in a pipeline has no terminal")
