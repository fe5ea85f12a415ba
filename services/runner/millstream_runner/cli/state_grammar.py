"""The grammar of `millstream state`."""

from __future__ import annotations

from millstream_runner.cli.of_run import BROKER, OF_RUN, PLACE, in_json
from millstream_runner.cli.parsing import Command, argument, flag, number, path

STATEFUL = argument("vertex", metavar="VERTEX", help="name of the vertex")
STATE_NAME = argument("--name", metavar="STATE", help="only this state of the function")
_KEY_HELP = "only this key; repeated for each of its parts"
THE_KEY = argument("--key", action="append", required=True, metavar="PART", help=_KEY_HELP)
ENTRIES = (
    argument("--key", action="append", metavar="PART", help=_KEY_HELP),
    argument("--prefix", metavar="TEXT", help="only keys that begin with this"),
    STATE_NAME,
)
STATE = Command(
    "state",
    "show what functions remember, and change it",
    "Show what the function of a vertex with `udf.state` remembers, as of the last commit of each of its lanes, "
    "whether or not the pipeline is running; or change it.",
    commands=(
        Command(
            "list",
            "show all of it, ordered by key",
            arguments=(
                OF_RUN,
                STATEFUL,
                *ENTRIES,
                number(
                    "--count",
                    default=100,
                    help="entries to show, and the rest of the last key; 0 for all (default: 100)",
                ),
                argument("--after", action="append", metavar="PART", help="only keys after this one: the next page"),
                PLACE,
                *BROKER,
                in_json("prints one JSON object per entry"),
            ),
        ),
        Command(
            "get",
            "show what is remembered for a key",
            arguments=(
                OF_RUN,
                STATEFUL,
                THE_KEY,
                STATE_NAME,
                PLACE,
                *BROKER,
                in_json("prints one JSON object per entry"),
            ),
        ),
        Command(
            "watch",
            "show what changes, as it is committed",
            "Show what changes of it from now on, as it is committed, until Ctrl-C or the end of the run. Nothing "
            "waits for it.",
            arguments=(
                OF_RUN,
                STATEFUL,
                *ENTRIES,
                PLACE,
                *BROKER,
                in_json("prints one JSON object per change"),
            ),
        ),
        Command(
            "export",
            "write it to a file, for `import`",
            arguments=(
                OF_RUN,
                STATEFUL,
                *ENTRIES,
                path(
                    "--to",
                    metavar="FILE",
                    help="Parquet if its name ends with .parquet, otherwise JSON lines (default: JSON lines on "
                    "standard output)",
                ),
                PLACE,
                *BROKER,
                in_json("prints how many entries were exported"),
            ),
        ),
        Command(
            "import",
            "store the entries of files",
            "Store the entries of files that `export` has written, or that have the same form, in place of those "
            "with the same keys. The pipeline may never have run. Everything is checked before anything is stored; "
            "while the pipeline runs, its lanes check whether the entries fit, part by part. An import that is "
            "interrupted can be repeated.",
            arguments=(
                OF_RUN,
                STATEFUL,
                path(
                    "--from",
                    dest="files",
                    action="append",
                    required=True,
                    metavar="FILE",
                    help="JSON lines, or Parquet if its name ends with .parquet; can be repeated",
                ),
                PLACE,
                in_json(),
            ),
        ),
        Command(
            "edit",
            "set one value",
            "Set one value of a state, whether or not the pipeline is running. An entry that expires keeps its time.",
            arguments=(
                OF_RUN,
                STATEFUL,
                argument(
                    "--key",
                    action="append",
                    default=[],
                    metavar="PART",
                    help="the key; repeated for each of its parts",
                ),
                argument("--name", required=True, metavar="STATE", help="the state"),
                argument("--item", metavar="JSON", help="the item of a map, or the number of an item of a list"),
                argument("--value", metavar="JSON", help="the value (default: read from standard input)"),
                argument(
                    "--if",
                    dest="if_value",
                    metavar="JSON",
                    help="set it only if it has this value now, or has the new one already",
                ),
                flag("--if-absent", help="set it only if there is no such entry"),
                number("--partition", help="the partition, for a state with `scope: lane`"),
                PLACE,
                in_json(),
            ),
        ),
        Command(
            "delete",
            "forget keys",
            arguments=(
                OF_RUN,
                STATEFUL,
                *ENTRIES,
                PLACE,
                in_json(),
            ),
        ),
    ),
)
