r"""The key of an entry: the key of a record as bytes, one to one. Pure.

    ()              b""
    ("ada",)        b"ada"
    ("ada", "eu")   b"ada\x1feu"
    ("",)           b"\x1e"
    ("ada",)        b"\x1e\x1eada", of a table

Parts are separated by 0x1f, as for the partition of a record. A part that has such bytes itself is escaped, so that no
two keys have the same bytes. The keys of tables are apart from those of records: a function gets the entries of the
latter with its calls, and those of tables are for all calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream_udf import columns

_SEPARATOR, _ESCAPE = b"\x1f", b"\x1e"
_ESCAPED_SEPARATOR, _ESCAPED_ESCAPE = _ESCAPE + b"1", _ESCAPE + b"0"


_OF_TABLE = _ESCAPE + _ESCAPE


def table_key_of(parts: Sequence[bytes]) -> bytes:
    """The key of an entry of a table."""
    return _OF_TABLE + key_of(parts)


def is_of_table(key: bytes) -> bool:
    """Whether it is the key of an entry of a table."""
    # Never so of a record: there, the byte is alone or before a digit.
    return key.startswith(_OF_TABLE)


def key_of(parts: Sequence[bytes]) -> bytes:
    """The key of a record with these parts."""
    if len(parts) == 1:
        return _escaped(parts[0]) or _ESCAPE
    return _SEPARATOR.join(map(_escaped, parts))


def distinct_keys(column: bytes, records: int) -> tuple[list[bytes], Sequence[int]]:
    """The keys of records, each once, and for each record which of them it has. `column`: of the keys, encoded. Raises
    `ValueError` for bytes that are not one."""
    if (found := columns.distinct_lists(column, records)) is not None:
        return found
    numbers: dict[tuple[bytes, ...], int] = {}
    record_keys = [numbers.setdefault(parts, len(numbers)) for parts in columns.unpack_lists(column, records)]
    return [key_of(parts) for parts in numbers], record_keys


def parts_of(key: bytes) -> tuple[bytes, ...]:
    """The inverse of `key_of`, and of `table_key_of`."""
    key = key.removeprefix(_OF_TABLE)
    if not key:
        return ()
    if key == _ESCAPE:
        return (b"",)
    return tuple(
        part.replace(_ESCAPED_SEPARATOR, _SEPARATOR).replace(_ESCAPED_ESCAPE, _ESCAPE) for part in key.split(_SEPARATOR)
    )


def _escaped(part: bytes) -> bytes:
    if _SEPARATOR not in part and _ESCAPE not in part:
        return part
    return part.replace(_ESCAPE, _ESCAPED_ESCAPE).replace(_SEPARATOR, _ESCAPED_SEPARATOR)
