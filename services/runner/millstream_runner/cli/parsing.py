"""Parsing of command lines: help that fits a terminal, and errors that suggest what was probably meant.

Above it: the grammar (`arguments`). Below it: argparse. It does not know the commands.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from millstream import codes
from millstream.errors import UserError
from millstream.nearest import nearest
from millstream.printable import PrintableStream
from millstream_runner.cli.examples import examples_of
from millstream_runner.colours import RESET, Style, is_coloured

WIDTH_MAX = 80
"""Columns of a help text, which people read in split windows and paste."""
_HELP_POSITION = 26
_NAMED_MAX = 12
"""The most edges or vertices that a message lists."""
_SYNONYMS = {
    "check": "validate", "create": "init", "dlq": "deadletters", "draw": "graph", "help": "--help", "lint": "validate",
    "new": "init", "ps": "status", "start": "run", "tail": "logs", "up": "run",
}  # fmt: skip
"""What other programs call a command."""
_HEADING = re.compile(r"^([a-z][a-z ]*:)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")
_NO_VALUE = re.compile(r"argument (?:.*/)?(\S+): expected (?:one|at least one) argument")
_EXCLUSIVE = re.compile(r"argument (?:.*/)?(\S+): not allowed with argument (?:.*/)?(\S+)")
_REQUIRED = "the following arguments are required: "


@dataclass(frozen=True, slots=True)
class Argument:
    """An option or argument of a command, as `ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a command below one."""

    name: str
    summary: str
    """For the list of commands."""
    description: str = ""
    """For its own help. Empty: the summary."""
    arguments: Sequence[Argument | tuple[Argument, ...]] = ()
    """In the order of its help. Those in a tuple exclude each other."""
    commands: Sequence[Command] = ()
    """Commands below it, as `arguments.action`."""


def argument(*names: str, **settings: Any) -> Argument:
    """An option or argument with the settings that argparse has."""
    return Argument(names, settings)


def flag(*names: str, **settings: Any) -> Argument:
    """An option without a value."""
    return Argument(names, {"action": "store_true", **settings})


def number(*names: str, **settings: Any) -> Argument:
    """An option whose value is a whole number."""
    return Argument(names, {"type": int, "metavar": "N", **settings})


def path(*names: str, **settings: Any) -> Argument:
    """An option or argument that names a file or a directory."""
    return Argument(names, {"type": Path, **settings})


class UsageError(UserError):
    """A command line that cannot be understood."""

    def __init__(self, parser: Parser, message: str, *, show_help: bool = False) -> None:
        super().__init__(codes.COMMAND_LINE, message)
        self.prog = parser.prog
        """The command as far as it was understood: `millstream deadletters list`."""
        self.help = parser.format_help() if show_help else ""
        """The help, to be shown as well if the command line was almost empty."""


class Parser(argparse.ArgumentParser):
    """The parser of one command. Raises `UsageError` instead of ending the process."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _Formatter, "allow_abbrev": False, **settings})
        # The colours of Python 3.14 and later ignore what has been escaped.
        self.color = False
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="print stack traces with errors"
        )
        self._found = argparse.Namespace()
        """The arguments that it has read from the command line."""
        self.groups: dict[str, tuple[str, ...]] = {}
        """The groups of its subcommands, for its help."""

    def add_commands(self, dest: str, metavar: str, commands: Iterable[Command]) -> None:
        """Add commands below this one, with everything below them."""
        below = self.add_subparsers(dest=dest, required=True, metavar=metavar)
        for command in commands:
            description = command.description or f"{command.summary[0].upper()}{command.summary[1:]}."
            parser = below.add_parser(command.name, help=command.summary, description=description)
            for one in command.arguments:
                group = parser if isinstance(one, Argument) else parser.add_mutually_exclusive_group()
                for argument in (one,) if isinstance(one, Argument) else one:
                    group.add_argument(*argument.names, **argument.settings)
            if command.commands:
                parser.add_commands("action", "WHAT", command.commands)

    @property
    def path(self) -> tuple[str, ...]:
        """The words of its command: `("deadletters", "list")`."""
        return tuple(self.prog.split()[1:])

    @property
    def commands(self) -> argparse._SubParsersAction[Parser] | None:
        """Its subcommands."""
        return next((action for action in self._actions if isinstance(action, argparse._SubParsersAction)), None)

    def parse_known_args(  # type: ignore[override]  # argparse has it with overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Like argparse, but reports an unknown option first, because it may be why something is missing."""
        # A shell that asks for candidates has no use for a message.
        if args is not None and "_ARGCOMPLETE" not in os.environ:
            self._refuse_unknown_options(args)
        self._found = namespace or argparse.Namespace()
        found, rest = super().parse_known_args(args, self._found)
        if rest and self.commands is None:
            known = [option for option in self._option_string_actions if len(option) == len("-x")]
            if rest[0].startswith("-"):
                self.error(f"unknown option {rest[0]}; the options are: {', '.join(known)}")
            self.error(f"unexpected argument {rest[0]!r}")
        return found, rest

    def format_help(self) -> str:
        """The help of argparse, but with commands in groups, followed by examples."""
        text = super().format_help() if not self.groups else self._grouped_help()
        examples = examples_of(self.path)
        if not examples:
            return text
        lines = [line for example in examples for line in (f"  # {example.what}", f"  {example.command}")]
        return "\n".join([text.rstrip("\n"), "", "examples:", *lines, ""])

    def _grouped_help(self) -> str:
        below = self.commands
        assert below is not None, "what is grouped are commands"
        listed = {str(action.dest): action for action in below._choices_actions}
        grouped = {name for names in self.groups.values() for name in names}
        groups = {**self.groups, "more": tuple(name for name in listed if name not in grouped)}
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, names in groups.items():
            formatter.start_section(title)
            formatter.add_arguments([listed[name] for name in names if name in listed])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action is not below])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, with colours if the file is a terminal. No text in it comes from a user."""
        out: TextIO = file or sys.stderr
        if is_coloured(out):
            out = out.stream if isinstance(out, PrintableStream) else out
            message = _HEADING.sub(lambda found: f"{Style.HEADING.value}{found[1]}{RESET}", message)
            message = _OPTION.sub(lambda found: f"{Style.NAME.value}{found[1]}{RESET}", message)
        out.write(message)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error in our words."""
        if found := _NO_VALUE.fullmatch(message):
            action = self._option_string_actions.get(found[1])
            example = f": {found[1]} {action.metavar}" if action is not None and action.metavar else ""
            raise UsageError(self, f"{found[1]} needs a value{example}")
        if found := _EXCLUSIVE.fullmatch(message):
            raise UsageError(self, f"{found[1]} and {found[2]} exclude each other: give one of them")
        if message.startswith(_REQUIRED):
            if self.commands is not None:
                raise UsageError(self, f"`{self.prog}` needs one of the commands above", show_help=True)
            raise UsageError(self, "; ".join(map(self._missing, message.removeprefix(_REQUIRED).split(", "))))
        raise UsageError(self, message)

    def _missing(self, name: str) -> str:
        option = name.rpartition("/")[2]
        action = self._option_string_actions.get(option) or next(
            (one for one in self._actions if not one.option_strings and option in (one.metavar, one.dest)), None
        )
        meaning = (action.help or "") if action is not None else ""
        if action is not None and action.choices is not None:
            meaning = f"one of {', '.join(map(str, action.choices))}"
        elif named := self._named_here(option):
            meaning += f"; known are: {', '.join(named)}"
        return f"{option} is missing{f': {meaning}' if meaning else ''}"

    def _named_here(self, option: str) -> list[str]:
        """The names to choose from, if the missing argument is an edge or a vertex."""
        if option not in ("EDGE", "VERTEX"):
            return []
        # The completion reads the files of this directory.
        from millstream_runner.cli.completing import values_of

        return list(values_of(option, self._found))[:_NAMED_MAX]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            synonym = _SYNONYMS.get(value) if not self.path else None
            meant = synonym if synonym == "--help" or synonym in known else nearest(value, known)
            self.error(f"there is no command {value!r}{_meant(meant, known)}")
        name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
        self.error(f"{name} cannot be {value!r}{_meant(nearest(str(value), known), known)}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            name = action.option_strings[-1] if action.option_strings else str(action.metavar)
            kind = "a whole number" if action.type is int else "a number"
            self.error(f"{name} cannot be {arg_string!r}; it must be {kind}")

    def _refuse_unknown_options(self, words: Iterable[str]) -> None:
        """Refuse unknown options of this command; those after a subcommand's name belong to the subcommand."""
        below = self.commands
        for word in words:
            if word == "--" or (below is not None and not word.startswith("-")):
                return
            option = word.partition("=")[0]
            if not option.startswith("--") or option in self._option_string_actions:
                continue
            known = [name for name in self._option_string_actions if name.startswith("--")]
            below_it = {
                name: path
                for path, parser in ((below.choices if below is not None else {}).items())
                for name in parser._option_string_actions
            }
            if option in below_it:
                self.error(f"put {option} after the command: {self.prog} {below_it[option]} {option}")
            self.error(f"there is no option {option}{_meant(nearest(option, known), ())}")


def _meant(near: str | None, known: Sequence[str]) -> str:
    if near is not None:
        return f"; did you mean {near}?"
    return f"; known are: {', '.join(known)}" if known else ""


class _Formatter(argparse.HelpFormatter):
    """Help of at most `WIDTH_MAX` columns. The exit codes keep their line breaks."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
        super().__init__(prog, max_help_position=_HELP_POSITION, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("exit codes:"):
            return "".join(f"{indent}{line}\n" for line in text.splitlines()).rstrip()
        return super()._fill_text(text, width, indent)
