"""Starts a command that cannot outlive its parent.

    python -I -S .../die_with_parent.py <parent's process id> -- command argument ...

Above it: code that starts processes (the sidecar supervisor, the local runner). Below it: the operating system. It
knows nothing of Millstream and imports next to nothing, because it stands between every start and its command; it is
gone (replaced by the command, same process id) a few milliseconds later.

On Linux the kernel sends SIGKILL to the command when the parent dies, however it dies. The kernel means the *thread*
that started it: start processes from the main thread, or from one that lives as long as the process. A command that
changes its user, or has set-uid bits, outlives it. Elsewhere the command is simply run.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

NOT_FOUND = 127
"""Exit code when there is no such command, as in a shell."""
NOT_RUNNABLE = 126
"""Exit code when the command cannot be run, as in a shell."""


def dying_with_parent(command: list[str]) -> list[str]:
    """The command line that runs `command` so that it dies with the calling process."""
    # -I: this file's directory must not be searched for modules (it has a `statistics`), nor PYTHON* variables matter.
    # -S: site packages cost time at every start.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "--", *command]


def main(arguments: list[str]) -> int:
    """`arguments` are the parent's process id, "--", and the command. Returns only when the command cannot be run."""
    parent, _, *command = arguments
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            print(f"die_with_parent: prctl failed: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            return NOT_RUNNABLE
    # The parent may have died before the line above: then the signal never comes, and the command is not wanted.
    if os.getppid() != int(parent):
        return NOT_RUNNABLE
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"die_with_parent: {command[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"die_with_parent: {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_RUNNABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
