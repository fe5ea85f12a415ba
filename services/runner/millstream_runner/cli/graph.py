"""`millstream graph`: draws a pipeline."""

from __future__ import annotations

import argparse

from millstream.spec.loading import load
from millstream.spec.render import to_mermaid, to_text


def run(arguments: argparse.Namespace) -> int:
    graph = load(arguments.file).graph
    print(to_mermaid(graph) if arguments.format == "mermaid" else to_text(graph), end="")
    return 0
