"""`millstream graph`: draws a pipeline."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping

from millstream.spec.graph import Graph
from millstream.spec.loading import load
from millstream.spec.render import to_json, to_mermaid, to_text
from millstream_runner.pictures.graph import to_html, to_svg

_DRAWN: Mapping[str, Callable[[Graph], str]] = {
    "text": to_text,
    "mermaid": to_mermaid,
    "svg": to_svg,
    "html": to_html,
}


def run(arguments: argparse.Namespace) -> int:
    graph = load(arguments.file).graph
    if arguments.json:
        print(json.dumps(to_json(graph)))
        return 0
    print(_DRAWN[arguments.format](graph), end="")
    return 0
