"""Candidates for shell completion: commands, options, and values from the files in this directory.

    shell ── the words before the cursor ──► millstream __complete SHELL WORD… ── one candidate per line ──► shell

Above it: `main`, which a shell's script calls (`completion` prints the scripts). Below it: the grammar, and names from
pipeline files and data directories. The files are not validated, because a file that is being edited may not be valid.
It imports no models, so an answer takes a tenth of a second. On an error it returns no candidates and prints no
message.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from millstream.json_parser import parse_json
from millstream.sandbox import DATA_DIRECTORIES

_YAML = (".yaml", ".yml")
_HELP_CHARACTERS_MAX = 60
_FILE_BYTES_MAX = 1024 * 1024
"""Larger files are not read, because completion has to be quick."""


class Grammar(Protocol):
    """What is asked of the parser of a command: `millstream_runner.cli.parsing`, which asks this module for names."""

    @property
    def commands(self) -> argparse._SubParsersAction[Any] | None:
        """Its subcommands."""

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """Its options and arguments, in order."""


class Candidate(NamedTuple):
    """One candidate word."""

    word: str
    help: str = ""
    is_path: bool = False


@dataclass
class Line:
    """The meaning of the words before the one that is being typed."""

    parser: Grammar
    values: list[str] = field(default_factory=list)
    """The positional arguments of the last command."""
    options: dict[str, str] = field(default_factory=dict)
    """The option values of all commands, by name."""
    given: set[str] = field(default_factory=set)
    """The options given to the last command."""
    open_option: argparse.Action | None = None
    """An option whose value comes next."""
    is_literal: bool = False
    """After `--`, nothing is an option."""


def main(parser: Grammar, arguments: Sequence[str]) -> int:
    """Answer a shell's script. The arguments are `SHELL WORD…`; the last word is the one that is being typed."""
    shell, *words = arguments
    fragment = None
    if shell == "bash":
        words, fragment = _of_bash(words)
    with suppress(Exception):
        found = list(candidates(parser, words or [""]))
        print("\n".join(_answer(shell, found, words[-1] if words else "", fragment)))
    return 0


def candidates(parser: Grammar, words: Sequence[str]) -> Iterator[Candidate]:
    """The candidates for the last word; each begins with it."""
    *before, current = words
    line = _read(parser, before)
    option, has_value, value = current.partition("=")
    if line.open_option is not None:
        yield from _matching(_values_of(line.open_option, line, current), current)
    elif current.startswith("-") and has_value and not line.is_literal:
        action = _option(line.parser, option)
        for found in _matching(_values_of(action, line, value), value) if action is not None else ():
            yield found._replace(word=f"{option}={found.word}")
    elif current.startswith("-") and not line.is_literal:
        yield from _matching(_options_of(line), current)
    else:
        values = list(_matching(_arguments_of(line, current), current))
        yield from values
        if not values and not current:
            yield from _options_of(line)


def names_of(metavar: str, parser: Grammar, words: Sequence[str]) -> list[str]:
    """The candidates for a `metavar` whose values are known, given the words on the line."""
    of_kind = VALUES[metavar]
    with suppress(Exception):
        found = of_kind(_read(parser, words), "") if of_kind is not None else ()
        return list(dict.fromkeys(candidate.word for candidate in found))
    return []


def _option(parser: Grammar, name: str) -> argparse.Action | None:
    return next((action for action in parser.actions if name in action.option_strings), None)


def _read(parser: Grammar, words: Iterable[str]) -> Line:
    line = Line(parser)
    for word in words:
        if line.open_option is not None:
            line.options[line.open_option.dest] = word
            line.open_option = None
        elif word == "--" and not line.is_literal:
            line.is_literal = True
        elif word.startswith("-") and len(word) > 1 and not line.is_literal:
            name, has_value, value = word.partition("=")
            action = _option(line.parser, name)
            if action is None:
                continue
            line.given.update(action.option_strings)
            if has_value:
                line.options[action.dest] = value
            elif action.nargs != 0:
                line.open_option = action
        elif (below := line.parser.commands) is not None and word in below.choices:
            line = Line(below.choices[word], options=line.options)
        else:
            line.values.append(word)
    return line


def _options_of(line: Line) -> Iterator[Candidate]:
    for action in line.parser.actions:
        repeated = isinstance(action, argparse._AppendAction)
        if action.option_strings and (repeated or not line.given.intersection(action.option_strings)):
            yield Candidate(action.option_strings[-1], _short(action.help))


def _arguments_of(line: Line, current: str) -> Iterator[Candidate]:
    """Commands, or values of the next argument, and of the ones after it if it is optional."""
    below = line.parser.commands
    if below is not None:
        for choice in below._choices_actions:
            yield Candidate(str(choice.dest), _short(choice.help))
        return
    positionals = [action for action in line.parser.actions if not action.option_strings]
    left = len(line.values)
    for action in positionals:
        if left and action.nargs in (None, "?"):
            left -= 1
            continue
        yield from _values_of(action, line, current)
        if action.nargs != "?":
            return


def _values_of(action: argparse.Action, line: Line, current: str) -> Iterator[Candidate]:
    if action.choices is not None:
        yield from (Candidate(str(choice)) for choice in action.choices)
        return
    of_kind = _OF_OPTION.get(action.dest) or VALUES.get(str(action.metavar))
    if of_kind is not None:
        yield from of_kind(line, current)


def _matching(found: Iterable[Candidate], current: str) -> Iterator[Candidate]:
    known = set()
    for candidate in found:
        if candidate.word.startswith(current) and candidate.word not in known:
            known.add(candidate.word)
            yield candidate


def _short(text: str | None) -> str:
    words = (text or "").split(";")[0].split(" (")[0].replace("`", "")
    return words if len(words) <= _HELP_CHARACTERS_MAX else f"{words[: _HELP_CHARACTERS_MAX - 1]}…"


# Files


def _paths(current: str, wanted: Callable[[str], bool]) -> Iterator[Candidate]:
    """Directories, and files of the right kind, that begin with the typed path."""
    head, _, begun = current.rpartition("/")
    folder = f"{head}/" if "/" in current else ""
    place = Path(folder).expanduser()
    for entry in sorted(os.scandir(place), key=lambda entry: entry.name) if place.is_dir() else ():
        if entry.name.startswith(".") and not begun.startswith("."):
            continue
        if entry.is_dir():
            yield Candidate(f"{folder}{entry.name}/", is_path=True)
        elif wanted(entry.name):
            yield Candidate(f"{folder}{entry.name}", is_path=True)


def _pipeline_files(_: Line, current: str) -> Iterator[Candidate]:
    return _paths(current, lambda name: name.endswith(_YAML))


def _files(_: Line, current: str) -> Iterator[Candidate]:
    return _paths(current, lambda name: True)


def _directories(_: Line, current: str) -> Iterator[Candidate]:
    return _paths(current, lambda name: False)


# Names in pipelines


def _pipelines(line: Line) -> Iterator[Mapping[str, Any]]:
    """The pipelines that may be meant: of the line's files, of its run, or all that are here or have run here."""
    named = [word for word in (*line.values, line.options.get("file", "")) if word.endswith(_YAML)]
    if named:
        yield from filter(None, map(_of_file, named))
        return
    if directory := line.options.get("data_dir"):
        runs = [Path(directory)]
    elif name := line.options.get("pipeline"):
        runs = [Path(DATA_DIRECTORIES) / name]
    else:
        runs = sorted(path.parent for path in Path(DATA_DIRECTORIES).glob("*/pipeline.json"))
    found = list(filter(None, map(_of_run, runs)))
    yield from found or filter(None, (_of_file(str(path)) for path in sorted(Path().glob("*.yaml"))))


def _of_run(directory: Path) -> Mapping[str, Any] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        pipeline: Mapping[str, Any] = parse_json((directory / "pipeline.json").read_bytes())["pipeline"]
        return pipeline
    return None


def _of_file(name: str) -> Mapping[str, Any] | None:
    from ruamel.yaml import YAML

    path = Path(name).expanduser()
    # A file that is being edited may not be valid YAML: then there are no candidates.
    with suppress(Exception):
        if path.stat().st_size <= _FILE_BYTES_MAX:
            contents = YAML(typ="safe", pure=True).load(path)
            return contents if isinstance(contents, dict) else None
    return None


def _members(line: Line, name: str) -> Iterator[Mapping[str, Any]]:
    for pipeline in _pipelines(line):
        members = pipeline.get("spec", {}).get(name) or ()
        yield from (member for member in members if isinstance(member, dict))


def _vertices(line: Line, _: str) -> Iterator[Candidate]:
    for vertex in _members(line, "vertices"):
        kind = next((key for key in vertex if key in ("source", "sink", "udf")), "")
        yield Candidate(str(vertex.get("name", "")), kind)


def _debugged(line: Line, _: str) -> Iterator[Candidate]:
    """Vertices whose Python function has its own process; the function of a reduce runs in Spark."""
    for vertex in _members(line, "vertices"):
        if _has(vertex, "python") and not _has(vertex, "groupBy"):
            yield Candidate(str(vertex.get("name", "")))


def _has(value: Any, name: str) -> bool:
    """Whether a value has a field, at any depth."""
    if isinstance(value, dict):
        return name in value or any(_has(item, name) for item in value.values())
    return isinstance(value, list) and any(_has(item, name) for item in value)


def _sources(line: Line, _: str) -> Iterator[Candidate]:
    return (vertex for vertex in _vertices(line, "") if vertex.help == "source")


def _edges(line: Line, _: str) -> Iterator[Candidate]:
    from millstream.spec.edge_names import default_edge_name

    for edge in _members(line, "edges"):
        yield Candidate(str(edge.get("name") or default_edge_name(edge)), f"{edge.get('from')} → {edge.get('to')}")


def _runs(_: Line, __: str) -> Iterator[Candidate]:
    return (Candidate(path.parent.name) for path in sorted(Path(DATA_DIRECTORIES).glob("*/pipeline.json")))


# Other values


def _codes(_: Line, current: str) -> Iterator[Candidate]:
    from millstream import codes

    prefix = "ms-" if current.startswith("m") else "MS-"
    return (Candidate(f"{prefix}{code.number}", code.title) for code in codes.CODES.values())


def _ledgers(_: Line, __: str) -> Iterator[Candidate]:
    from millstream.spec.buffers import TECHNOLOGIES

    return map(Candidate, sorted(TECHNOLOGIES.names))


def _connectors(_: Line, __: str) -> Iterator[Candidate]:
    from millstream.spec.connectors import SINKS, SOURCES

    return map(Candidate, sorted({*SOURCES.names, *SINKS.names}))


def _words(*words: str) -> Callable[[Line, str], Iterator[Candidate]]:
    return lambda _, __: map(Candidate, words)


def _faults(_: Line, current: str) -> Iterator[Candidate]:
    before, comma, _last = current.rpartition(",")
    return (Candidate(f"{before}{comma}{kind}") for kind in ("kill", "pause", "network", "disk") if kind not in before)


def _experiments(line: Line, current: str) -> Iterator[Candidate]:
    yield from map(Candidate, ("mesh", "push", "windows"))
    yield from _pipeline_files(line, current)


VALUES: dict[str, Callable[[Line, str], Iterable[Candidate]] | None] = {
    "PIPELINE": _pipeline_files,
    "TESTS": _pipeline_files,
    "EXPERIMENT": _experiments,
    "WHAT": _pipeline_files,
    "FILE": _files,
    "DIR": _directories,
    "VERTEX": _vertices,
    "SOURCE": _sources,
    "EDGE": _edges,
    "NAME": _runs,
    "LEDGER": _ledgers,
    "CODE": _codes,
    "CONNECTOR": _connectors,
    "KINDS": _faults,
    "TIME": _words("now"),
    "WHEN": _words("30s", "10m", "2h", "1d"),
    "ADDRESS": _words("127.0.0.1", "0.0.0.0"),
    **dict.fromkeys(("BYTES", "FIELD", "ID", "KEY", "N", "PORT", "S", "SEQUENCE", "SIZE", "SQL", "TEXT", "URL")),
}
"""Candidates by the `metavar` of an option or argument; each has one, or choices. None: the values are unknown."""
_OF_OPTION: dict[str, Callable[[Line, str], Iterable[Candidate]]] = {"debug_function": _debugged}
"""Options, by `dest`, that accept fewer values than their `metavar` suggests."""


# Shells


def _of_bash(words: Sequence[str]) -> tuple[list[str], str]:
    """The words as bash passes them: split at `=`, with quotes. Also the part of the last word that bash replaces."""
    joined: list[str] = []
    glue = False
    for word in words:
        if word == "=" and joined and joined[-1].startswith("--"):
            joined[-1] += "="
            glue = True
        elif glue:
            joined[-1] += word
            glue = False
        else:
            joined.append(word)
    last = words[-1] if words else ""
    return [_unquoted(word) for word in joined], "" if last == "=" else _unquoted(last)


def _unquoted(word: str) -> str:
    with suppress(ValueError):
        return "".join(shlex.split(word))
    # A quote is not closed yet.
    return word.lstrip("'\"")


def _answer(shell: str, found: Sequence[Candidate], current: str, fragment: str | None) -> Iterator[str]:
    """One candidate per line. For bash and zsh, the first line says whether they are `paths` or `words`."""
    if shell != "fish":
        yield "paths" if any(candidate.is_path for candidate in found) else "words"
    # Bash replaces only the part after `=`.
    cut = len(current) - len(fragment) if fragment is not None else 0
    for candidate in found:
        if any(character in candidate.word for character in "\n\t"):
            continue
        yield f"{candidate.word[cut:]}\t{candidate.help}" if shell != "bash" else candidate.word[cut:]
