"""`millstream graph`: draws a pipeline."""

from __future__ import annotations

import argparse
import json

from millstream.spec.loading import load
from millstream.spec.render import to_json, to_mermaid, to_text


def run(arguments: argparse.Namespace) -> int:
    graph = load(arguments.file).graph
    if arguments.json:
        print(json.dumps(to_json(graph)))
        return 0
    print(to_mermaid(graph) if arguments.format == "mermaid" else to_text(graph), end="")
    return 0
