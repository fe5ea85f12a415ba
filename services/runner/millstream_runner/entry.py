"""What the script `millstream` calls: imports the command line, and runs it.

Nothing has begun while modules are imported, so Ctrl-C ends the process then as if it did not handle the signal,
without a traceback. It must not import much itself.
"""

import signal
from functools import partial


def main() -> int:
    """Run the command that the arguments name. Returns the exit code."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from millstream_runner.cli import main as command_line

    return command_line.main(on_ready=partial(signal.signal, signal.SIGINT, handler))
