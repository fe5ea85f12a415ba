"""One file of a source, opened in its format: text is split into lines, Parquet and Avro into rows."""

from __future__ import annotations

from millstream_connectors.file.source.table_file import TableFile, open_table_file
from millstream_connectors.file.source.text_file import FileMark, TextFile, TextFormat, open_text_file

TABLES = ("parquet", "avro")
"""Formats with types."""

SourceFile = TextFile | TableFile


def open_any_file(path: str, name: str, text: TextFormat, mark: FileMark) -> SourceFile:
    """Blocks. Open a file at `mark`; Call `begin` next. Errors: `OSError`."""
    if text.name in TABLES:
        return open_table_file(path, name, text.name, text.extraction, mark)
    return open_text_file(path, name, text, mark)
