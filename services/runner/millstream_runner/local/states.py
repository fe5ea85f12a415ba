"""The states of a run, a vertex and a process: one name for each, wherever it is shown.

    starting ─► waiting for Spark ─► running ─► draining ─► stopped
       ▲                              │   └───────────────► done
       └── restarting ◄── not answering                     failing ─► failed

Above it: everything that shows a state: the screen, `status`, the log, the report. docs/glossary.md has the same words.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """A state, with the name that is shown."""

    STARTING = "starting"
    """Started, and not ready yet."""
    WAITING_FOR_SPARK = "waiting for Spark"
    """Everything else is ready; windows cannot be computed yet."""
    RUNNING = "running"
    """Processes records."""
    SILENT = "not answering"
    """Gives no sign of life; it will be replaced soon."""
    FIXING = "waiting for a change"
    """Its function cannot be started; the next change of a file starts it again."""
    DEBUGGED = "being debugged"
    """A debugger is attached to its function."""
    RESTARTING = "restarting"
    """Its process died and is being restarted."""
    DRAINING = "draining"
    """Sources have stopped reading; records in flight are processed."""
    FAILING = "failing"
    """A part has failed permanently; the others are being stopped."""
    STOPPED = "stopped"
    """Ended before everything was processed; the next run continues."""
    DONE = "done"
    """Everything has been processed."""
    FAILED = "failed"
    """Cannot continue."""
    INTERRUPTED = "interrupted"
    """Its runner was killed; the next run continues."""


OVER = frozenset({State.STOPPED, State.DONE, State.FAILED, State.INTERRUPTED})
"""The final states."""
