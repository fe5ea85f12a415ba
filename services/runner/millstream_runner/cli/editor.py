"""The link from a pipeline file to its JSON schema, with which an editor completes, explains and checks fields.

    pipeline.yaml             begins with MODELINE
    .millstream/schema.json   the schema of this installation, including the kinds of installed packages

Editors read the modeline and find the schema next to the file, so they need no network. `init` writes both; a run
writes the schema again if it is missing (as in a fresh clone: `.millstream` is not committed) or is of another version.
"""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from millstream.files import make_private_directories, write_private
from millstream.sandbox import DATA_DIRECTORIES

SCHEMA_FILE = f"{DATA_DIRECTORIES}/schema.json"
"""Path of the schema, relative to the directory of the pipeline file."""
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n# $schema: {SCHEMA_FILE}\n"
"""The first lines of a pipeline file. VS Code and other users of the YAML language server read the first line; PyCharm
and other JetBrains editors read the second.
"""
_HEAD_BYTES = 4096
"""How much is read of a pipeline file to find its modeline, and of a schema to find its version."""


def write_schema(directory: Path) -> Path:
    """Write the schema for the pipeline files of a directory; takes about a second. Raises `OSError`."""
    from millstream.spec.schema import schema

    path = directory / SCHEMA_FILE
    make_private_directories(path.parent)
    write_private(path, json.dumps({"$comment": _made_by(), **schema()}, indent=1) + "\n")
    return path


def refresh_schema(file: Path) -> None:
    """Write the schema that a pipeline file refers to, if it is missing or of another version.

    Does nothing for a file that does not refer to our schema. A directory that is not writable is ignored, because only
    editors use the schema.
    """
    with suppress(OSError):
        if SCHEMA_FILE.encode() not in _head(file):
            return
        path = file.parent / SCHEMA_FILE
        if not path.exists() or json.dumps(_made_by()).encode() not in _head(path):
            write_schema(file.parent)


def _made_by() -> str:
    return f"millstream {version('millstream')}"


def _head(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(_HEAD_BYTES)
