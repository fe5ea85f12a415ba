"""Arguments that many commands have: the run that they are about, and the form of the output."""

from __future__ import annotations

import argparse

from millstream_runner.cli.parsing import Argument, argument, path


class _Format(argparse.Action):
    """`-o json`: prints the facts as JSON instead of text."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, _: object = None
    ) -> None:
        namespace.json = values == "json"


def in_json(text: str = "prints one JSON object") -> Argument:
    """The one option for facts as JSON; commands read it as `arguments.json`."""
    return argument(
        "-o",
        "--output",
        dest="json",
        action=_Format,
        default=False,
        choices=("text", "json"),
        metavar="FORMAT",
        help=f"`text` (the default) or `json`, which {text}",
    )


OF_RUN = path("of", nargs="?", metavar="PIPELINE", help="pipeline file (default: the only pipeline that was run here)")
PLACE = (
    path("--data-dir", metavar="DIR", help="data directory of the run"),
    argument("--pipeline", metavar="NAME", help="pipeline that was run from here (default: the only one)"),
)
"""They exclude each other."""
BROKER = (
    argument("--broker", metavar="URL", help="inspect this broker instead, for a pipeline that runs elsewhere"),
    path("--broker-access", metavar="FILE", help="file with credentials and certificates"),
    path("--file", metavar="PIPELINE", help="file of that pipeline; with --broker"),
)
