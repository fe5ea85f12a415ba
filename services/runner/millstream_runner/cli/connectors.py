"""`millstream connectors`: the kinds of sources and sinks, their guarantees and their options."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from millstream import codes
from millstream.errors import UserError
from millstream.nearest import one_of
from millstream.spec.connectors import SINKS, SOURCES, Connector, SourceKind
from millstream.spec.needs import not_installed
from millstream.spec.options import Option, options_of
from millstream.spec.registry import OURS, Registry
from millstream.spec.values import SpecModel
from millstream_runner.cli.answer import answer
from millstream_runner.colours import Heading

_WIDTH = 100
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class _Listed:
    """A kind of source or sink that can be loaded."""

    name: str
    role: str
    """`source` or `sink`."""
    package: str
    kind: Connector[SpecModel]


def run(arguments: argparse.Namespace) -> int:
    found = [*_of(SOURCES), *_of(SINKS)]
    if arguments.connector is not None:
        named = [listed for listed in found if listed.name == arguments.connector]
        if not named:
            names = sorted({listed.name for listed in found})
            what = f"there is no source or sink `{arguments.connector}`: {one_of(arguments.connector, names)}"
            raise UserError(codes.NO_SUCH_CONNECTOR, what)
        found = named
    with_options = arguments.connector is not None
    facts = {"connectors": [_as_json(listed, with_options=with_options) for listed in found]}
    answer(arguments, facts, _text(found, with_options=with_options))
    return 0


def _of(registry: Registry[Any]) -> Iterator[_Listed]:
    for name, kind in registry.all():
        yield _Listed(name, registry.noun, registry.package_of(name), kind)


def _text(found: list[_Listed], *, with_options: bool) -> Iterator[str]:
    for listed in found:
        yield Heading(f"{listed.role} {listed.name}") if with_options else f"{listed.role} {listed.name}"
        sentence = listed.kind.promise.sentence
        yield from _wrapped(f"{listed.kind.meaning} {sentence[:1].upper()}{sentence[1:]}.")
        if isinstance(listed.kind, SourceKind):
            yield from _wrapped(f"Ends: {listed.kind.ends}.")
        if listed.package != OURS:
            yield from _wrapped(f"From the package {listed.package}.")
        for one in not_installed(listed.kind.needs()):
            yield from _wrapped(f"Here it {one.what}: {one.remedy}.")
        if with_options:
            yield ""
            for option in options_of(listed.kind.model):
                yield from _option(option)
        yield ""
    if not with_options:
        yield "`millstream connectors NAME` shows the options"


def _option(option: Option) -> Iterator[str]:
    default = "required" if option.default == "required" else f"default: {option.default}" if option.default else ""
    yield f"{_INDENT}{option.name}  ({', '.join(part for part in (option.type, default) if part)})"
    yield from _wrapped(option.meaning, _INDENT * 3)


def _wrapped(text: str, indent: str = _INDENT) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _as_json(listed: _Listed, *, with_options: bool) -> dict[str, Any]:
    kind = listed.kind
    told: dict[str, Any] = {
        "name": listed.name,
        "role": listed.role,
        "package": listed.package,
        "meaning": kind.meaning,
        "guarantee": {"id": kind.promise.id.value, "sentence": kind.promise.sentence},
        "needs": list(kind.packages.values()),
        "installed": not list(not_installed(kind.needs())),
    }
    if isinstance(kind, SourceKind):
        told["ends"] = kind.ends
    if with_options:
        told["options"] = [asdict(option) for option in options_of(kind.model)]
    return told
