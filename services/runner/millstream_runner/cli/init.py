"""`millstream init`: a working pipeline with a function, a test and some data, to begin with."""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError, UserError
from millstream_runner.cli.editor import MODELINE, write_schema

_SUFFIX = ".template"
"""Template files carry it so that nothing mistakes them for modules and tests of Millstream itself."""


def run(arguments: argparse.Namespace) -> int:
    target: Path = arguments.directory
    template = files("millstream_runner.cli") / "templates" / arguments.template
    contents = list(_files_below(template, Path()))
    taken = [name for name, _ in contents if (target / name).exists()]
    if taken:
        raise UserError(
            codes.PATH_EXISTS, f"{target / taken[0]} exists already; nothing was written. Choose another directory"
        )
    written: list[Path] = []
    try:
        for name, text in contents:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            # What has come meanwhile is not ours to write over.
            with (target / name).open("x", encoding="utf-8") as file:
                file.write(MODELINE + text if name.suffix == ".yaml" else text)
            written.append(target / name)
        written.append(write_schema(target))
    except OSError as error:
        raise InfrastructureError(codes.CANNOT_WRITE, f"cannot write {error.filename}: {error.strerror}") from error
    if arguments.json:
        print(json.dumps({"directory": str(target), "files": [str(path) for path in written]}))
        return 0
    print("\n".join(f"wrote {path}" for path in written))
    print(f"\nnext:\n  cd {target}\n  millstream run pipeline.yaml\n  python -m unittest")
    return 0


def _files_below(folder: Traversable, name: Path) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _files_below(entry, name / entry.name)
        elif entry.name.endswith(_SUFFIX):
            found.append((name / entry.name.removesuffix(_SUFFIX), entry.read_text(encoding="utf-8")))
    return found
