"""`millstream validate --online` of a sink, as tests run it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from millstream_runner.cli.main import main


def validate_sink(kind: str, settings: Mapping[str, Any], directory: Path, **beside: Any) -> int:
    """The exit code for a pipeline whose only sink is of that kind. `beside`: more settings of the sink."""
    vertices = [{"name": "in", "source": {"generator": {}}}, {"name": "out", "sink": {kind: settings, **beside}}]
    pipeline = {
        "apiVersion": "millstream.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "p"},
        "spec": {"vertices": vertices, "edges": [{"from": "in", "to": "out"}]},
    }
    file = directory / "pipeline.yaml"
    with file.open("w") as stream:
        YAML().dump(json.loads(json.dumps(pipeline)), stream)
    return main(["validate", "--online", str(file)])
