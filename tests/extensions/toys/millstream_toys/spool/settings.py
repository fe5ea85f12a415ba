"""The settings of spool directories in pipeline files."""

from __future__ import annotations

from millstream.spec.values import Flag, SpecModel, Text


class SpoolSource(SpecModel):
    """Reads the files of a directory in the order of their numbers, from 1. Each file is a record."""

    noun = "a spool source"

    path: Text
    """The directory, relative to the pipeline file. Of several partitions, each reads every n-th file."""
    stop_at_end: Flag = False
    """End after the last file, and do not wait for more."""


class SpoolSink(SpecModel):
    """Writes each record as a file, named by its number."""

    noun = "a spool sink"

    path: Text
    """The directory, relative to the pipeline file. Each lane has a directory below it."""
