"""What a run, a vertex and a process are doing: one word for each state, wherever it is shown.

    starting ─► waiting for Spark ─► running ─► draining ─► stopped
       ▲                              │   └───────────────► done
       └── restarting ◄── not answering                     failing ─► failed

Above it: everything that shows a state: the screen, `status`, the log, the report. docs/glossary.md has the same words.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """A state, in the words that are shown."""

    STARTING = "starting"
    """Started, and does not work yet."""
    WAITING_FOR_SPARK = "waiting for Spark"
    """Everything else is ready; windows cannot be computed yet."""
    RUNNING = "running"
    """Takes in what there is."""
    SILENT = "not answering"
    """Gives no sign of life; it is replaced soon."""
    FIXING = "waiting for a change"
    """Its function cannot be started; the next change of a file starts it again."""
    DEBUGGED = "being debugged"
    """A debugger has its function."""
    RESTARTING = "restarting"
    """Its process died and is started again."""
    DRAINING = "draining"
    """Sources take nothing new in; what is in flight is finished."""
    FAILING = "failing"
    """Something has failed finally; the rest is ended."""
    STOPPED = "stopped"
    """Ended before everything was processed; the next run goes on."""
    DONE = "done"
    """Everything has been processed."""
    FAILED = "failed"
    """Cannot go on."""
    INTERRUPTED = "interrupted"
    """Its runner was killed; the next run goes on."""


OVER = frozenset({State.STOPPED, State.DONE, State.FAILED, State.INTERRUPTED})
"""Nothing comes after them."""
