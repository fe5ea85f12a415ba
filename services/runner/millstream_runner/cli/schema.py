"""`millstream schema`: the JSON schema of the pipeline file, for editors and other tools."""

from __future__ import annotations

import argparse
import json

from millstream.spec.schema import schema


def run(arguments: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=1))
    return 0
