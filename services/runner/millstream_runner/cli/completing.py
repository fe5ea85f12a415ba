"""Values for shell completion and for messages: names from the files in this directory, paths, and fixed words.

Above it: `completion`, which answers a shell, and `parsing`, whose messages say which names there are. Below it:
pipeline files and data directories. The files are not validated, because a file that is being edited may not be valid.
It imports no models, so an answer takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from millstream.json_parser import parse_json
from millstream.sandbox import DATA_DIRECTORIES

_YAML = (".yaml", ".yml")
_FILE_BYTES_MAX = 1024 * 1024
"""Larger files are not read, because completion has to be quick."""

_NAMING = ("of", "edge", "file", "files")
"""Arguments that may name a pipeline file. A single word before an edge is taken for the edge."""

Values = dict[str, str]
"""Words, and for each what it is."""


def values_of(kind: str | None, arguments: argparse.Namespace, current: str = "") -> Values:
    """The values of a kind (a key of `VALUES`) that fit the arguments on the line; `current` is the word begun there.

    Empty on an error, such as a file without a pipeline.
    """
    of_kind = VALUES.get(kind or "")
    with suppress(Exception):
        return of_kind(arguments, current) if of_kind is not None else {}
    return {}


# Files


def _paths(_: argparse.Namespace, current: str, *, suffixes: tuple[str, ...]) -> Values:
    """Directories, and files with such a name, that begin with the typed path."""
    head, _slash, begun = current.rpartition("/")
    folder = f"{head}/" if "/" in current else ""
    place = Path(folder).expanduser()
    found: Values = {}
    for entry in sorted(os.scandir(place), key=lambda entry: entry.name) if place.is_dir() else ():
        if entry.name.startswith(".") and not begun.startswith("."):
            continue
        if entry.is_dir():
            found[f"{folder}{entry.name}/"] = ""
        elif entry.name.endswith(suffixes):
            found[f"{folder}{entry.name}"] = ""
    return found


def _pipeline_files(arguments: argparse.Namespace, current: str) -> Values:
    # A single word before an edge is taken for the edge, until another follows.
    if getattr(arguments, "edge", None):
        return {}
    return _paths(arguments, current, suffixes=_YAML)


# Names in pipelines


def _pipelines(arguments: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """The pipelines that may be meant: of the line's files, of its run, or all that are here or have run here."""
    given = vars(arguments)
    values = [given[name] for name in _NAMING if given.get(name) is not None]
    words = [word for value in values for word in (value if isinstance(value, list) else [value])]
    if named := [Path(word) for word in words if str(word).endswith(_YAML)]:
        yield from filter(None, map(_of_file, named))
        return
    if directory := given.get("data_dir"):
        runs = [directory]
    elif name := given.get("pipeline"):
        runs = [Path(DATA_DIRECTORIES) / name]
    else:
        runs = [Path(DATA_DIRECTORIES) / name for name in _run_names()]
    found = list(filter(None, map(_of_run, runs)))
    yield from found or filter(None, map(_of_file, sorted(Path().glob("*.yaml"))))


def _run_names() -> list[str]:
    return sorted(path.parent.name for path in Path(DATA_DIRECTORIES).glob("*/pipeline.json"))


def _of_run(directory: Path) -> Mapping[str, Any] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        pipeline: Mapping[str, Any] = parse_json((directory / "pipeline.json").read_bytes())["pipeline"]
        return pipeline
    return None


def _of_file(named: Path) -> Mapping[str, Any] | None:
    from ruamel.yaml import YAML

    path = named.expanduser()
    # A file that is being edited may not be valid YAML: then there are no candidates.
    with suppress(Exception):
        if path.stat().st_size <= _FILE_BYTES_MAX:
            contents = YAML(typ="safe", pure=True).load(path)
            return contents if isinstance(contents, dict) else None
    return None


def _members(arguments: argparse.Namespace, name: str) -> Iterator[Mapping[str, Any]]:
    for pipeline in _pipelines(arguments):
        members = pipeline.get("spec", {}).get(name) or ()
        yield from (member for member in members if isinstance(member, dict))


def _vertices(arguments: argparse.Namespace, _: str) -> Values:
    return {
        str(vertex.get("name", "")): next((key for key in vertex if key in ("source", "sink", "udf")), "")
        for vertex in _members(arguments, "vertices")
    }


def _debugged(arguments: argparse.Namespace, _: str) -> Values:
    """Vertices whose Python function has its own process; the function of a reduce runs in Spark."""
    return _words(
        str(vertex.get("name", ""))
        for vertex in _members(arguments, "vertices")
        if _has(vertex, "python") and not _has(vertex, "groupBy")
    )


def _has(value: Any, name: str) -> bool:
    """Whether a value has a field, at any depth."""
    if isinstance(value, dict):
        return name in value or any(_has(item, name) for item in value.values())
    return isinstance(value, list) and any(_has(item, name) for item in value)


def _forgotten(arguments: argparse.Namespace, _: str) -> Values:
    """Vertices with something that only `--forget` gives up: sources, and those with a state."""
    vertices = _members(arguments, "vertices")
    return _words(str(vertex.get("name", "")) for vertex in vertices if "source" in vertex or _has(vertex, "state"))


def _edges(arguments: argparse.Namespace, _: str) -> Values:
    from millstream.spec.edge_names import default_edge_name

    return {
        str(edge.get("name") or default_edge_name(edge)): f"{edge.get('from')} → {edge.get('to')}"
        for edge in _members(arguments, "edges")
    }


# Other values


def _words(words: Iterable[str]) -> Values:
    return dict.fromkeys(words, "")


def _codes(_: argparse.Namespace, current: str) -> Values:
    from millstream import codes

    prefix = "ms-" if current.startswith("m") else "MS-"
    return {f"{prefix}{code.number}": code.title for code in codes.CODES.values()}


def _ledgers(_: argparse.Namespace, __: str) -> Values:
    from millstream.spec.buffers import TECHNOLOGIES

    return _words(sorted(TECHNOLOGIES.names))


def _connectors(_: argparse.Namespace, __: str) -> Values:
    from millstream.spec.connectors import SINKS, SOURCES

    return _words(sorted({*SOURCES.names, *SINKS.names}))


def _faults(_: argparse.Namespace, current: str) -> Values:
    before, comma, _last = current.rpartition(",")
    return _words(f"{before}{comma}{kind}" for kind in ("kill", "pause", "network", "disk") if kind not in before)


def _experiments(arguments: argparse.Namespace, current: str) -> Values:
    return _words(("mesh", "push", "state", "windows")) | _pipeline_files(arguments, current)


VALUES: dict[str, Callable[[argparse.Namespace, str], Values] | None] = {
    "PIPELINE": _pipeline_files,
    "TESTS": _pipeline_files,
    "EXPERIMENT": _experiments,
    "WHAT": _pipeline_files,
    "FILE": partial(_paths, suffixes=("",)),
    "DIR": partial(_paths, suffixes=()),
    "VERTEX": _vertices,
    "debug_function": _debugged,
    "forget": _forgotten,
    "EDGE": _edges,
    "NAME": lambda *_: _words(_run_names()),
    "LEDGER": _ledgers,
    "SAVEPOINT": partial(_paths, suffixes=()),
    "CODE": _codes,
    "CONNECTOR": _connectors,
    "KINDS": _faults,
    "TIME": lambda *_: {"now": ""},
    "WHEN": lambda *_: _words(("30s", "10m", "2h", "1d")),
    "ADDRESS": lambda *_: _words(("127.0.0.1", "0.0.0.0")),
    **dict.fromkeys(
        (
            "BYTES",
            "FIELD",
            "ID",
            "JSON",
            "KEY",
            "N",
            "PART",
            "PORT",
            "S",
            "SEQUENCE",
            "SIZE",
            "SQL",
            "STATE",
            "TEXT",
            "URL",
        )
    ),
}
"""Candidates by the `metavar` of an option or argument (or its `dest`, if it accepts fewer values than the `metavar`
suggests); each has one, or choices. None: the values are unknown."""
