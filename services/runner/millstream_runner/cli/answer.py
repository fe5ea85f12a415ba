"""What a command has found, printed for programs or for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

from millstream_runner.colours import show_lines


def answer(arguments: argparse.Namespace, facts: object, lines: Iterable[str]) -> None:
    """Print the facts as JSON if `-o json` asks for that, and the lines otherwise."""
    if arguments.json:
        print(json.dumps(facts))
    else:
        show_lines(lines, sys.stdout)
