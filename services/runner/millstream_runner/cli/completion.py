"""`millstream completion`: prints the script with which a shell completes `millstream`; and the answer to that script.

    shell ── COMP_LINE, COMP_POINT, _ARGCOMPLETE ──► millstream ── candidates, on descriptor 8 ──► shell

Above it: `main`, and the shell. Below it: argcomplete, which reads the grammar and knows the shells. It is imported
only if a shell asks, or for the script.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TextIO

from argcomplete.completers import BaseCompleter
from argcomplete.finders import ExclusiveCompletionFinder
from argcomplete.shell_integration import shellcode

from millstream_runner.cli.completing import VALUES, values_of

_HELP_CHARACTERS_MAX = 60
_ZSH = r"""#compdef millstream
# Completion of millstream for zsh: as _millstream in a directory of $fpath, or source <(millstream completion zsh)
_millstream() {
    local -a found nospace
    # The words of this command alone, where argcomplete's own script passes the whole line.
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    local answer="$(_ARGCOMPLETE=1 _ARGCOMPLETE_SHELL=zsh _ARGCOMPLETE_SUPPRESS_SPACE=1 COMP_LINE="$line" \
        COMP_POINT=${#line} ${~words[1]} 8>&1 1>/dev/null 2>&1 </dev/null)"
    found=("${(@ps:\v:)answer}")
    [[ $found[1] == *[=/]:* ]] && nospace=(-S '')
    [[ -n $answer ]] && _describe -V millstream found "${nospace[@]}"
}
if [[ $funcstack[1] == _millstream ]]; then
    _millstream "$@"
else
    compdef _millstream millstream
fi
"""


class Finder(ExclusiveCompletionFinder):
    """Offers options, if they are not given yet, where a dash is typed or nothing else is possible."""

    def collect_completions(
        self, active_parsers: list[argparse.ArgumentParser], parsed_args: argparse.Namespace, cword_prefix: str
    ) -> list[str]:
        """Also shortens what is shown beside the candidates, which is the help of the options."""
        found = super().collect_completions(active_parsers, parsed_args, cword_prefix)
        shown = self.get_display_completions()
        shown.update({word: _short(text) for word, text in shown.items()})
        return [word for word in found if not word.startswith("-")] or found


class _Values(BaseCompleter):
    def __call__(
        self, *, prefix: str, action: argparse.Action, parser: argparse.ArgumentParser, parsed_args: argparse.Namespace
    ) -> Iterable[str]:
        """The candidates for the value of an option or argument."""
        kind = action.dest if action.dest in VALUES else action.metavar
        # What is used if nothing is typed is not typed.
        typed = {name: value for name, value in vars(parsed_args).items() if value is not parser.get_default(name)}
        return values_of(str(kind), argparse.Namespace(**typed), prefix)


def _short(text: str) -> str:
    words = text.split(";")[0].split(" (")[0].replace("`", "")
    return words if len(words) <= _HELP_CHARACTERS_MAX else f"{words[: _HELP_CHARACTERS_MAX - 1]}…"


def answer(parser: argparse.ArgumentParser, output: TextIO | None = None) -> None:
    """Answer the shell whose question is in the environment, by default on descriptor 8. Raises `SystemExit`."""
    Finder()(
        parser,
        always_complete_options="long",
        exit_method=sys.exit,
        output_stream=output,
        default_completer=_Values(),
    )


def run(arguments: argparse.Namespace) -> int:
    shell = arguments.shell
    script = _ZSH if shell == "zsh" else shellcode(["millstream"], shell=shell, complete_arguments=["-o", "nospace"])
    print(script, end="")
    return 0
