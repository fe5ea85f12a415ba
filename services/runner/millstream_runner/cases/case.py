"""Case files: the input of each source, and the expected output of each sink.

Above it: the command. Below it: YAML with places. It reads a file and reports every problem with its line; it does not
know the pipeline.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.extract import microseconds_of
from millstream.spec import yaml_text
from millstream.spec.problems import Path as Place
from millstream.spec.problems import Problem, SpecError, path_text
from millstream.spec.values import parse_duration

SUFFIX = ".case.yaml"
"""Suffix of the names of case files."""
TIMEOUT_S = 120.0
ANY = "any"
"""Instead of expected records: the sink is not checked."""

_MEMBERS = ("pipeline", "inputs", "outputs", "order", "timeout")
_VALUES = ("value", "text", "base64")
_INPUT = (*_VALUES, "time", "keys", "headers", "id")
_EXPECTED = (*_VALUES, "contains", "time", "keys", "headers", "reason")
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class CaseInput:
    """A record that a source returns."""

    value: bytes
    time_us: int | None = None
    """Microseconds since 1970; None: as the source derives it from the value, or the time of reading."""
    keys: tuple[str, ...] | None = None
    headers: Mapping[str, str] | None = None
    id: str | None = None

    @property
    def is_value_only(self) -> bool:
        return self.time_us is None and self.keys is None and self.headers is None and self.id is None


@dataclass(frozen=True, slots=True)
class ExpectedRecord:
    """An expected record. Fields that are None are not checked."""

    line: int
    """Line in the case file."""
    json: Any = _MISSING
    """The complete value, as JSON."""
    contains: Mapping[str, Any] | None = None
    """Members that the value, a JSON object, must have; it may have others."""
    raw: bytes | None = None
    """The complete value, byte for byte."""
    time_us: int | None = None
    keys: tuple[str, ...] | None = None
    headers: Mapping[str, str] | None = None
    """Headers that it must have; it may have others."""
    reason: str | None = None
    """A part of the reason of a dead letter."""

    @property
    def has_json(self) -> bool:
        return self.json is not _MISSING


@dataclass(frozen=True, slots=True)
class Case:
    """A case file."""

    path: Path
    pipeline: Path | None
    """The pipeline file that it names."""
    inputs: Mapping[str, Sequence[CaseInput]]
    """Input records by source vertex."""
    outputs: Mapping[str, Sequence[ExpectedRecord] | None]
    """Expected records by sink vertex; None: the sink is not checked."""
    in_order: bool
    timeout_s: float
    document: yaml_text.Document

    def problem(self, place: Place, what: str, expected: str) -> Problem:
        """Something that does not fit the pipeline."""
        return _problem(self.path, self.document, place, what, expected)


def read_case(path: Path) -> Case:
    """Read and check a case file. Raises `SpecError` with every problem."""
    try:
        document = yaml_text.parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        unreadable = Problem(codes.TEST_CASE, str(path), 0, 0, "", "the text is not UTF-8", "a file in UTF-8")
        raise SpecError([unreadable]) from None
    except yaml_text.UnreadableError as error:
        raise SpecError([_text_problem(path, error.problem)]) from None
    reader = _Reader(path, document)
    reader.problems += [_text_problem(path, problem) for problem in document.problems]
    case = reader.case()
    if reader.problems:
        raise SpecError(sorted(reader.problems, key=lambda problem: (problem.line, problem.column)))
    return case


def _text_problem(path: Path, problem: yaml_text.TextProblem) -> Problem:
    place = problem.place
    text = path_text(problem.path)
    return Problem(codes.TEST_CASE, str(path), place.line, place.column, text, problem.what, problem.expected)


def _problem(path: Path, document: yaml_text.Document, place: Place, what: str, expected: str) -> Problem:
    at = document.place_of(place)
    return Problem(codes.TEST_CASE, str(path), at.line, at.column, path_text(place), what, expected)


class _Reader:
    """Reads one document, and continues after each problem."""

    def __init__(self, path: Path, document: yaml_text.Document) -> None:
        self._path = path
        self._document = document
        self.problems: list[Problem] = []

    def case(self) -> Case:
        value = self._mapping((), self._document.value, _MEMBERS)
        if value and not value.get("outputs"):
            self._refuse(("outputs",), "it expects nothing", "`outputs`, with a list of records for each sink")
        pipeline = value.get("pipeline")
        order = value.get("order", ANY)
        if order not in (ANY, "same"):
            self._refuse(("order",), f"{order!r} is not an order", "`any` (the default) or `same`")
        return Case(
            path=self._path,
            pipeline=self._path.parent / str(pipeline) if pipeline is not None else None,
            inputs={
                source: [self._input(("inputs", source, index), item) for index, item in enumerate(items)]
                for source, items in self._lists("inputs", value)
            },
            outputs={
                sink: None
                if items == ANY
                else [self._expected(("outputs", sink, index), item) for index, item in enumerate(items)]
                for sink, items in self._lists("outputs", value, or_any=True)
            },
            in_order=order == "same",
            timeout_s=self._timeout(value.get("timeout", TIMEOUT_S)),
            document=self._document,
        )

    def _lists(self, member: str, value: Mapping[str, Any], *, or_any: bool = False) -> Iterator[tuple[str, Any]]:
        given = value.get(member)
        for name, items in self._mapping((member,), {} if given is None else given).items():
            if items is None:
                yield name, []
            elif isinstance(items, list) or (or_any and items == ANY):
                yield name, items
            else:
                either = ", or `any` if it does not matter" if or_any else ""
                self._refuse((member, name), "it is not a list of records", f"a list{either}")

    def _input(self, place: Place, item: Any) -> CaseInput:
        members = self._record(place, item, _INPUT)
        given = self._one_of(place, members, _VALUES)
        value = b""
        if given == "value":
            value = json.dumps(members["value"], ensure_ascii=False).encode()
        elif given is not None:
            value = self._raw((*place, given), given, members[given])
        return CaseInput(
            value,
            self._time(place, members),
            self._keys(place, members),
            self._headers(place, members),
            str(members["id"]) if "id" in members else None,
        )

    def _expected(self, place: Place, item: Any) -> ExpectedRecord:
        members = self._record(place, item, _EXPECTED)
        given = self._one_of(place, members, (*_VALUES, "contains"))
        return ExpectedRecord(
            line=self._document.place_of(place).line,
            json=members["value"] if given == "value" else _MISSING,
            contains=self._mapping((*place, "contains"), members["contains"]) if given == "contains" else None,
            raw=self._raw((*place, given), given, members[given]) if given in ("text", "base64") else None,
            time_us=self._time(place, members),
            keys=self._keys(place, members),
            headers=self._headers(place, members),
            reason=str(members["reason"]) if "reason" in members else None,
        )

    def _record(self, place: Place, item: Any, known: Sequence[str]) -> Mapping[str, Any]:
        """The members of a record; a plain text is its value."""
        if isinstance(item, str):
            return {"text": item}
        return self._mapping(place, item, known)

    def _one_of(self, place: Place, members: Mapping[str, Any], names: Sequence[str]) -> str | None:
        given = [name for name in names if name in members]
        if len(given) == 1:
            return given[0]
        one = ", ".join(f"`{name}`" for name in names)
        if members or not self.problems:
            what = f"it has {' and '.join(f'`{name}`' for name in given)}" if given else "it has no value"
            self._refuse(place, what, f"one of {one}, or a text")
        return None

    def _raw(self, place: Place, form: str, written: Any) -> bytes:
        if not isinstance(written, str):
            self._refuse(place, f"{written!r} is not a text", "a text, in quotes if it looks like something else")
            return b""
        if form == "text":
            return written.encode()
        try:
            return base64.b64decode(written, validate=True)
        except (binascii.Error, ValueError):
            self._refuse(place, "it is not base64", "bytes in base64")
            return b""

    def _time(self, place: Place, members: Mapping[str, Any]) -> int | None:
        if "time" not in members:
            return None
        written = members["time"]
        try:
            moment = datetime.fromisoformat(written) if isinstance(written, str) else written
            if isinstance(moment, datetime) and moment.tzinfo is not None:
                return microseconds_of(moment)
        except ValueError:
            pass
        self._refuse((*place, "time"), f"{written!r} is not a time", 'a time with its zone, "2026-01-05T09:00:00Z"')
        return None

    def _keys(self, place: Place, members: Mapping[str, Any]) -> tuple[str, ...] | None:
        keys = members.get("keys")
        if keys is None:
            return None
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            self._refuse((*place, "keys"), "they are not a list of texts", "[ada], with quotes around numbers")
            return None
        return tuple(keys)

    def _headers(self, place: Place, members: Mapping[str, Any]) -> Mapping[str, str] | None:
        if members.get("headers") is None:
            return None
        return {str(name): str(value) for name, value in self._mapping((*place, "headers"), members["headers"]).items()}

    def _timeout(self, written: Any) -> float:
        try:
            return parse_duration(written)
        except ValueError:
            self._refuse(("timeout",), f"{written!r} is not a duration", '"30s" or "2m"')
            return TIMEOUT_S

    def _mapping(self, place: Place, value: Any, known: Sequence[str] = ()) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            of = f"with {', '.join(f'`{name}`' for name in known)}" if known else "of names"
            self._refuse(place, "it is not a mapping", f"a mapping {of}")
            return {}
        for name in value:
            if known and name not in known:
                near = get_close_matches(str(name), known, 1)
                expected = f"`{near[0]}`" if near else f"one of {', '.join(known)}"
                self._refuse((*place, name), f"there is no `{name}` here", expected)
        return value

    def _refuse(self, place: Place, what: str, expected: str) -> None:
        self.problems.append(_problem(self._path, self._document, place, what, expected))
