"""Starts a command that cannot outlive its parent.

    python -I -S .../die_with_parent.py <parent's process id> -- command argument ...

Above it: code that starts processes (the sidecar supervisor, the local runner). Below it: the operating system. It
does not depend on Millstream and imports very little, because it runs at every start, before the command. The command
replaces it, with the same process id, a few milliseconds later. It leaves no core file.

On Linux the kernel sends SIGKILL to the command when the parent dies, however it dies. To the kernel, the parent is the
*thread* that started the command: start processes from the main thread, or from one that lives as long as the process.
A command that changes its user, or has set-uid bits, outlives it. On other systems the command runs without this.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

_PRIVATE = "--private"
"""In place of the usual separator: the process creates files for this user alone."""

NOT_FOUND = 127
"""Exit code when the command is not found, as in a shell."""
NOT_RUNNABLE = 126
"""Exit code when the command cannot be run, as in a shell."""


def dying_with_parent(command: list[str], *, private: bool = False) -> list[str]:
    """The command line that runs `command` so that it dies with the calling process. `private`: the files that it
    creates are for this user alone, whatever the umask."""
    # -I: Python must not search this file's directory for modules (it has a `statistics`), and must ignore PYTHON*
    # variables. -S: site packages cost time at every start.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), _PRIVATE if private else "--", *command]


def forbid_core_files() -> None:
    """From now on, this process and those that it starts leave no core file, which would hold records and keys.

    A limit of 0 does not keep the kernel from passing the memory to a program that collects core files; of 1 byte, it
    does, and no file is that small.
    """
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def main(arguments: list[str]) -> int:
    """`arguments` are the parent's process id, "--" or "--private", and the command. Returns only when the command
    cannot be run."""
    parent, separator, *command = arguments
    if separator == _PRIVATE:
        os.umask(0o077)
    forbid_core_files()
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            print(f"die_with_parent: prctl failed: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            return NOT_RUNNABLE
    # The parent may have died before the line above: then the signal never comes, and the command must not start.
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
