"""What ties a pipeline file to its JSON schema, so that an editor completes fields, explains and checks them.

    pipeline.yaml             begins with MODELINE
    .millstream/schema.json   the schema of this installation, kinds of installed packages included

Editors read the modeline and look for the schema beside the file, so nothing is asked of a network. `init` writes
both; a run writes the schema again where it is missing (a fresh clone: `.millstream` is not committed) or of another
version.
"""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from millstream.files import make_private_directories, write_private
from millstream.sandbox import DATA_DIRECTORIES

SCHEMA_FILE = f"{DATA_DIRECTORIES}/schema.json"
"""Of a pipeline file, relative to its directory."""
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n# $schema: {SCHEMA_FILE}\n"
"""The first lines of a pipeline file. VS Code and other users of the YAML language server read the first of them,
PyCharm and its relatives the second."""
_HEAD_BYTES = 4096
"""Of a pipeline file, in which its modeline stands, and of a schema, in which its version does."""


def write_schema(directory: Path) -> Path:
    """Write the schema for the pipeline files of a directory. About a second. Raises `OSError`."""
    from millstream.spec.schema import schema

    path = directory / SCHEMA_FILE
    make_private_directories(path.parent)
    write_private(path, json.dumps({"$comment": _made_by(), **schema()}, indent=1) + "\n")
    return path


def refresh_schema(file: Path) -> None:
    """Write the schema that a pipeline file refers to, where it is missing or of another version.

    Nothing happens for a file that refers to none of ours. A directory that cannot be written to is left as it is:
    the schema is for editors alone.
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
