"""`millstream compile`: writes what a vertex process reads instead of the pipeline file, or what its pod mounts."""

from __future__ import annotations

import argparse
import json
import sys

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.plan import resolved
from millstream.spec.loading import load
from millstream.spec.mounts import mounts_of
from millstream_runner.colours import show_message


def run(arguments: argparse.Namespace) -> int:
    loaded = load(arguments.file)
    for note in loaded.notes:
        show_message(f"note: {note}", sys.stderr)
    if arguments.secrets:
        text = json.dumps(mounts_of(loaded.pipeline), indent=2)
    else:
        text = resolved.dump(loaded.plan, arguments.base_dir or loaded.base_dir)
    if arguments.to is None:
        print(text)
        return 0
    try:
        arguments.to.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InfrastructureError(codes.CANNOT_WRITE, f"{arguments.to} cannot be written: {error.strerror}") from error
    return 0
