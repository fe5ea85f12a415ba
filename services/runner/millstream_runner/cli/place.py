"""The run that a command refers to by a pipeline file, a name or a data directory, or the only one here."""

from __future__ import annotations

import argparse
from pathlib import Path

from millstream import codes
from millstream.errors import UserError
from millstream_runner.local.directory import DataDirectory, find_directory

_SUFFIXES = (".yaml", ".yml")


def is_pipeline_file(word: object) -> bool:
    """Whether a word names a pipeline file. No vertex, edge or file of records has such a name."""
    return str(word).endswith(_SUFFIXES)


def directory_of(arguments: argparse.Namespace) -> DataDirectory:
    """The data directory. Raises `UserError` if there is none, or if more than one is possible."""
    file: Path | None = arguments.of
    if file is None:
        return find_directory(arguments.data_dir, arguments.pipeline)
    if arguments.pipeline is not None:
        raise UserError(
            codes.OPTIONS_CONFLICT,
            f"{file} and --pipeline {arguments.pipeline} both name a pipeline: leave one of them out",
        )
    # Loading a pipeline takes a while, and most calls name none.
    from millstream.spec.loading import load

    return find_directory(arguments.data_dir, load(file).pipeline.name)
