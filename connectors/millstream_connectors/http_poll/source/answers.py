"""The contents of an answer: its records, and what to request next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.exact_json import parse, text_of
from millstream_connectors.http_poll.settings import HttpPollSource

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Answer:
    """The contents of one answer."""

    records: Sequence[bytes]
    following: str | None
    """The next cursor, or the URL of the next page; None if the answer has none."""
    cursors: Sequence[str | None] = ()
    """The cursor of each record, where the last record has the next one."""


def read_answer(body: bytes, settings: HttpPollSource, link: str | None) -> Answer:
    """The records of a body. `link`: the URL of the next page from the header, if any.

    Raises `ValueError` for a body that does not fit the settings.
    """
    document: Any = None
    items: Sequence[Any] = ()
    if settings.body == "json":
        document = _parsed(body, "the answer")
        found = document if settings.records is None else _at(document, settings.records)
        if settings.records is not None and not isinstance(found, list):
            raise ValueError(f"the answer has no array at {settings.records!r}; check `records`")
        items = found if isinstance(found, list) else (found,)
        records = [_text(item) for item in items]
    elif settings.body == "lines":
        records = [line for line in (line.removesuffix(b"\r") for line in body.split(b"\n")) if line]
    else:
        records = [body] if body else []
    way = settings.cursor or settings.pages
    if way is None:
        return Answer(records, None)
    if way.link:
        return Answer(records, link)
    if way.path is not None:
        return Answer(records, _as_cursor(_at(document, way.path), way.path))
    if settings.cursor is None or settings.cursor.record_field is None or not records:
        return Answer(records, None)
    name = settings.cursor.record_field
    of_records = items or [_parsed(record, "a record") for record in records]
    following = _as_cursor(_at(of_records[-1], name), name)
    if following is None:
        raise ValueError(f"the last record has no {name!r}; check `cursor.recordField`")
    return Answer(records, following, [_cursor_or_none(_at(one, name), name) for one in of_records])


def _parsed(text: bytes, what: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def _at(document: Any, path: str) -> Any:
    """The member at a dotted path; None if it is missing."""
    for name in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return document


def _cursor_or_none(value: Any, path: str) -> str | None:
    try:
        return _as_cursor(value, path)
    except ValueError:
        return None


def _as_cursor(value: Any, path: str) -> str | None:
    if value is None or value == "" or value is False:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"the value at {path!r} is neither text nor a whole number: {text_of(value)[:_SHOWN]}")


def _text(item: Any) -> bytes:
    # An unpaired surrogate, which JSON can express and UTF-8 cannot, becomes its escape sequence.
    return text_of(item).encode(errors="backslashreplace")
