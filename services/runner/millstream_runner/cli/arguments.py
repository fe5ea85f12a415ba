"""The command line's grammar: commands, options, help. Nothing is imported here that takes time."""

from __future__ import annotations

import argparse
from pathlib import Path

from millstream_runner.cli.of_run import BROKER, OF_RUN, PLACE, in_json
from millstream_runner.cli.parsing import Command, Parser, argument, flag, number, path
from millstream_runner.cli.state_grammar import STATE

PIPELINE_FILE = "pipeline.yaml"
"""The pipeline file that is used if none is named."""
TEMPLATES = {
    "map": "a function called for each record, with tags and dead letters",
    "state": "a function that remembers something for each key",
    "reduce": "windows of event time, by a function and by a query (needs the extra `reduce`)",
    "source": "your own source, with a position that makes each record count once",
    "sink": "your own sink, which writes to a database",
    "async": "an async function that calls a service, hundreds of records at once",
    "batch": "a function over batches of records, for models and numpy",
    "http": "records over HTTP, until Ctrl-C",
    "connector": "a package with a sink for other pipelines, and the tests that every sink has to pass",
    "go": "a function in Go (needs Go 1.24)",
}
"""The templates of `millstream init` and what each shows; the first is the default."""

_EPILOG = """\
exit codes:
  0    done: the pipeline has ended, or was drained after Ctrl-C
  1    test: a test failed; chaos: a guarantee did not hold
  2    you have to change something: the pipeline file, an option
  3    a function of yours failed, or cannot be started
  4    the machine or a server: a port in use, a full disk, missing permissions
  5    stored data is damaged
  70   a defect in Millstream
  130  stopped at once (second Ctrl-C)
  141  the program that read standard output has ended
"""


_GROUPS = {
    "write and run": ("init", "run", "test", "validate", "graph", "connectors"),
    "inspect a run": ("status", "logs", "tap", "peek", "state", "audit", "explain"),
    "repair": ("deadletters", "repair", "watermark", "wal"),
    "keep": ("savepoint",),
    "machines and brokers": ("doctor", "spark", "bench", "chaos", "broker", "compile"),
    "shells and editors": ("completion", "schema", "version"),
}
"""Commands as `millstream --help` lists them."""


class _Version(argparse.Action):
    """`--version`: prints one line and exits. The version is looked up only when the option is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"millstream {version('millstream')}")
        parser.exit()


PIPELINE = path(
    "file",
    nargs="?",
    default=Path(PIPELINE_FILE),
    metavar="PIPELINE",
    help=f"pipeline file (default: {PIPELINE_FILE})",
)
DEAD_LETTERS = (
    path(
        "files",
        nargs="*",
        metavar="FILE",
        help="the pipeline's file; then files of dead letters, or directories (default: those of its sinks)",
    ),
    flag("--stored", help="those that still wait in buffers, which no sink has stored"),
    argument("--vertex", metavar="VERTEX", help="only those that this vertex gave up"),
    argument("--reason", metavar="TEXT", help="only those whose reason contains this text"),
    argument("--id", action="append", metavar="ID", help="only this record; can be repeated"),
    PLACE,
)
BENCH_OF_CHAIN = (
    number("--chain", default=1, help="maps in a chain (default: 1, no chain)"),
    flag("--from-source", help="the source is part of the chain"),
    flag("--unbuffered", help="source, maps and sink are one chain"),
    argument("--compression", choices=("none", "lz4", "zstd", "gzip"), default="none", help="(default: none)"),
    number("--keys", default=0, help="different keys (default: 0, none)"),
    flag("--builtin", help="use the built-in `cat` for the maps, not Python"),
    flag("--state", help="the maps remember the last record of each key, and return the one before it"),
    flag("--tls", help="measure again with encrypted connections to the broker, for comparison"),
)
BENCH = (
    argument("--size", type=int, default=100, metavar="BYTES", help="of each record (default: 100)"),
    argument("--durability", choices=("fsync", "process"), default="fsync", help="(default: fsync)"),
    argument("--ledger", metavar="LEDGER", default="jetstream", help="what keeps the records (default: jetstream)"),
    number("--workers", help="number of worker processes that share the vertices (default: as for run)"),
    in_json("prints one JSON object on the last line"),
)
RUN = (
    path(
        "--data-dir",
        metavar="DIR",
        help="directory for everything that the run stores (default: .millstream/<pipeline>)",
    ),
    flag(
        "--fresh",
        help="delete what earlier runs stored, and start over; refused if file sinks contain files of earlier runs",
    ),
    argument(
        "--from-savepoint",
        metavar="SAVEPOINT",
        help="begin with what a savepoint has: its directory, or its name if it was taken of this data directory or of "
        "the default one; for a data directory without data, or with --fresh",
    ),
    argument(
        "--forget",
        action="append",
        default=[],
        metavar="VERTEX",
        help="drop a source that is no longer in the pipeline, and its position, or a vertex with `state`, and that; "
        "can be repeated",
    ),
    flag(
        "--move-outputs",
        help="when starting over, move the files of earlier runs from DIR of a file sink to DIR.before-<time>",
    ),
    flag(
        "--dry-run",
        help="run nothing: list what differs from the last run of the data directory, and for each difference whether "
        "a restart is enough, whether it needs a drain, or why it is refused",
    ),
    flag(
        "--watch",
        help="restart a function when one of its files changes, while the pipeline continues; a function that "
        "cannot be started makes the pipeline wait until it is fixed",
    ),
    argument(
        "--debug-function",
        action="append",
        default=[],
        metavar="VERTEX",
        help="make the function of this vertex wait for a debugger (debugpy; VS Code, PyCharm), and do not treat it "
        "as hung; only programs of this user and root may attach (Linux); can be repeated",
    ),
    argument(
        "--debug-port",
        type=int,
        default=5678,
        metavar="PORT",
        help="local port for debuggers; further functions and replicas use the following ports (default: 5678)",
    ),
    flag("--quiet", help="print no progress and no summary, only warnings and errors"),
    argument(
        "--ledger",
        metavar="LEDGER",
        help="where records are stored between steps: `jetstream`, `redis`, or a technology of a package "
        "(default: `spec.interStepBuffer`)",
    ),
    argument(
        "--durability",
        choices=("fsync", "process"),
        default="fsync",
        help="what a commit survives: a power loss (fsync, the default) or the death of any process (process; faster)",
    ),
    number(
        "--workers",
        help="number of worker processes that share the vertices (default: the number of processors, at least two)",
    ),
    argument(
        "--worker-memory",
        metavar="SIZE",
        help="memory that each worker may take, such as 4Gi; one that takes more is ended and restarted, and the run "
        "ends if that happens again and again (default: three quarters of the memory of this machine or container)",
    ),
    argument(
        "--metrics-port-base",
        type=int,
        metavar="PORT",
        help="serve metrics and health probes of the workers on this port and the following ones (default: no "
        "ports); `millstream status` shows which port belongs to which worker",
    ),
    argument(
        "--metrics-host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address that these ports listen on; 0.0.0.0 means all (default: 127.0.0.1)",
    ),
    argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="log level of the workers (default: info)",
    ),
    path(
        "--report",
        metavar="FILE",
        help="write a page about the run when it ends, for whatever reason: rates, account, errors; it opens offline",
    ),
)
"""Of `run`: all but the pipeline file and the format of the output."""
_TEMPLATE = next(iter(TEMPLATES))
_TEMPLATES_SHOWN = "; ".join(f"`{name}`: {text}" for name, text in TEMPLATES.items())
COMMANDS = (
    Command(
        "run",
        "run a pipeline on this machine",
        "Run a pipeline on this machine, with a broker of its own, workers for its vertices, and your functions. "
        "The run ends when every source has ended, and prints a summary. Ctrl-C drains it; a second Ctrl-C stops it at "
        "once. Nothing is lost either way: the next run with the same data directory continues.",
        (
            PIPELINE,
            *RUN,
            in_json("prints one JSON object on the last line: the outcome of the run, and its account"),
        ),
    ),
    Command(
        "validate",
        "check a pipeline file",
        "Check a pipeline file and what it refers to on this machine (programs, functions, files). Reports every "
        "problem at once, with file, line, path, what is wrong and what was expected; for a valid file, reports "
        "what its sources and sinks guarantee. Spark analyses the queries of reduces, which takes some seconds.",
        (
            PIPELINE,
            flag("--file-only", help="check only the file: no programs, no data, no Spark"),
            flag(
                "--online",
                help="also let each source and sink try its server: address, credentials, permissions, tables and "
                "topics; nothing is changed there",
            ),
            argument(
                "--import",
                action="store_true",
                dest="import_functions",
                help="start each Python function as a run would, and report what cannot be imported or called: missing "
                "packages, wrong arguments and annotations",
            ),
            in_json(),
        ),
    ),
    Command(
        "graph",
        "draw a pipeline",
        "Draw a pipeline as text, as a Mermaid flow chart, as an SVG image, or as a page that opens offline.",
        (
            PIPELINE,
            argument("--format", choices=("text", "mermaid", "svg", "html"), default="text", help="(default: text)"),
            in_json("prints vertices and edges as one JSON object"),
        ),
    ),
    Command(
        "compile",
        "write the input of a worker process",
        "Check a pipeline file and write it as the JSON that `python -m millstream_worker --pipeline` reads, so "
        "that you can start vertices by hand or with your own tools. Values that the file only refers to are not "
        "included.",
        (
            PIPELINE,
            path("--to", metavar="FILE", help="output file (default: standard output)"),
            path(
                "--base-dir",
                metavar="DIR",
                help="absolute directory on the machine where the vertices run, to which relative paths are resolved "
                "(default: the directory of the file)",
            ),
            flag(
                "--secrets",
                help="instead, print the volumes that the pod of each vertex mounts for its Kubernetes Secrets",
            ),
        ),
    ),
    Command(
        "status",
        "show the progress of a run",
        "Show the progress of a run, by vertex and by lane; for a run that is over, how far it got.",
        (
            OF_RUN,
            flag("-w", "--watch", help="keep updating until the run is over or Ctrl-C"),
            PLACE,
            *BROKER,
            in_json(),
        ),
    ),
    Command(
        "logs",
        "show the logs of the processes",
        "Show what the processes of a run have logged, ordered by time.",
        (
            OF_RUN,
            argument("vertex", nargs="?", metavar="VERTEX", help="only this vertex (or `runner`, or `broker`)"),
            flag("-f", "--follow", help="keep printing new lines until Ctrl-C"),
            argument(
                "--level",
                choices=("debug", "info", "warning", "error"),
                default="debug",
                help="only lines of at least this level",
            ),
            argument("--since", metavar="WHEN", help="only lines since then: 30s, 10m, 2h, 1d, or a time (RFC 3339)"),
            number("--tail", help="only the last N lines"),
            in_json("prints one JSON object per line"),
            PLACE,
        ),
    ),
    Command(
        "peek",
        "show records of a buffer",
        "Show records in the buffer of an edge, without consuming them. Works whether or not the pipeline is "
        "running. Records are removed from a buffer soon after they have been read and committed.",
        (
            OF_RUN,
            argument("edge", metavar="EDGE", help="name of the edge (by default `<from>-<to>`)"),
            number("--partition", default=0, help="partition of the edge (default: 0)"),
            number("--count", default=10, help="records to show at most (default: 10)"),
            argument(
                "--from",
                dest="start",
                type=int,
                metavar="SEQUENCE",
                help="start at this frame (default: the first one that is not read and committed)",
            ),
            PLACE,
            *BROKER,
            in_json("prints one JSON object per record"),
        ),
    ),
    STATE,
    Command(
        "savepoint",
        "copy what a pipeline remembers, for another run to begin with",
        "Copy everything that a pipeline remembers at one moment: the states and timers of functions, the positions "
        "and remembered ids of sources, watermarks, and where its sinks are. `millstream run --from-savepoint` begins "
        "with it. The pipeline must not be running, and no records may wait in it: Ctrl-C drains it. Without a name, "
        "lists the savepoints.",
        (
            argument("name", nargs="?", metavar="NAME", help="name of the new savepoint"),
            OF_RUN,
            path(
                "--to",
                metavar="DIR",
                help="directory for the savepoint (default: `savepoints` in the data directory of the run)",
            ),
            PLACE,
            in_json(),
        ),
    ),
    Command(
        "tap",
        "show records on an edge as they pass",
        "Show records on an edge as they pass, without affecting them: nothing waits for the tap, and nothing is "
        "kept for it. If records pass faster than it can read them, it reports how many it has missed. Ends with "
        "the run.",
        (
            OF_RUN,
            argument("edge", metavar="EDGE", help="name of the edge (by default `<from>-<to>`)"),
            number("--partition", help="only this partition of the edge (default: all)"),
            argument("--key", action="append", metavar="KEY", help="only records with this key; may be repeated"),
            number("--limit", help="end after N records"),
            argument("--duration", metavar="TIME", help="end after this time: 30s, 10m, 2h"),
            PLACE,
            *BROKER,
            in_json("prints one JSON object per record"),
        ),
    ),
    Command(
        "audit",
        "show who did what to a pipeline",
        "Show who started, drained, stopped, inspected, replayed or repaired a pipeline, when, and with which spec.",
        (
            OF_RUN,
            flag("--elsewhere", help="instead, what you did to pipelines on other brokers (`--broker`)"),
            PLACE,
            in_json("prints one JSON object per entry, with the command line and a digest of the spec"),
        ),
    ),
    Command(
        "deadletters",
        "list dead letters, and replay them",
        "List the dead letters that file sinks of a pipeline have stored, or that wait in its buffers; or return "
        "them to the vertex that gave them up, for the next run. Each is replayed once, no matter how often this "
        "is run or when it is interrupted.",
        commands=(
            Command(
                "list",
                "count them by vertex and reason",
                arguments=(
                    in_json("prints one JSON object per dead letter, with its place"),
                    *DEAD_LETTERS,
                ),
            ),
            Command(
                "replay",
                "replay them; the pipeline must not be running",
                arguments=(
                    in_json(),
                    argument(
                        "--to",
                        metavar="VERTEX",
                        help="replay them to this vertex (default: the vertex that gave them up)",
                    ),
                    *DEAD_LETTERS,
                ),
            ),
        ),
    ),
    Command(
        "wal",
        "inspect the logs of reduce lanes",
        "Inspect the write-ahead logs of reduce lanes: segments, how far each edge has been read, windows that "
        "were handed over. Reports every fault, with exit code 5. Changes nothing, and also works while the "
        "pipeline is running.",
        (
            path("directory", metavar="DIR", help="a log, or a directory that contains logs"),
            flag("--verify", help="verify the checksum of every entry"),
            in_json(),
        ),
    ),
    Command(
        "repair",
        "report damage, and continue without what is lost",
        "Look for damage in the stored data of a pipeline that is not running: missing ledgers, commits that are "
        "stored in part, marks that went back, a past that was replaced, unusable frames, logs. Reports what each "
        "of them affects, and changes nothing; exit code 5 if there is any. With --accept-loss, continues without "
        "what is lost, and reports what that is.",
        (
            PIPELINE,
            path("--data-dir", metavar="DIR", help="data directory of the run"),
            flag("--accept-loss", help="give up what cannot be recovered"),
            in_json(),
        ),
    ),
    Command(
        "broker",
        "set up the users of a broker that pipelines share",
        "Write the accounts and users of a NATS server: an account for each pipeline, and in it a user for each "
        "vertex, with only the permissions it needs; or create what has to exist before a vertex starts.",
        commands=(
            Command(
                "config",
                "write accounts.conf, and an access file for each user",
                arguments=(
                    path("files", nargs="+", metavar="PIPELINE", help="pipeline files: all pipelines of the broker"),
                    path(
                        "--to",
                        metavar="DIR",
                        required=True,
                        help="output directory; passwords that are already there are kept",
                    ),
                    path("--ca", metavar="FILE", help="the certificate authority of the server, for TLS"),
                    in_json(),
                ),
            ),
            Command(
                "prepare",
                "create the ledgers of a pipeline, which its vertices may not create themselves",
                arguments=(
                    PIPELINE,
                    argument("--broker", metavar="URL", required=True, help="the broker"),
                    path("--broker-access", metavar="FILE", help="access file of the pipeline's own user"),
                    argument(
                        "--durability",
                        choices=("fsync", "process", "unverified"),
                        default="fsync",
                        help="what a commit must survive (default: fsync)",
                    ),
                    in_json(),
                ),
            ),
        ),
    ),
    Command(
        "watermark",
        "show how far event time has come, and set it back",
        "Show the event time of each lane of a pipeline that is not running. With --set-back, show what it would "
        "cost to continue from an earlier time, after a record from the far future has moved it ahead; with "
        "--accept-loss, do so.",
        (
            PIPELINE,
            path("--data-dir", metavar="DIR", help="data directory of the run"),
            argument("--set-back", metavar="TIME", help="to `now`, or to a time such as 2024-01-31T08:00:00Z"),
            flag("--accept-loss", help="do it, at that cost"),
            in_json(),
        ),
    ),
    Command(
        "init",
        "create a pipeline to start with",
        "Create a directory with a working pipeline, its function, tests, sample data, and files for your editor. "
        "The pipeline is named after the directory. The command asks nothing and overwrites nothing.",
        (
            path(
                "directory",
                nargs="?",
                metavar="DIR",
                help="directory; created if it does not exist (default: the current directory)",
            ),
            argument(
                "--template",
                choices=tuple(TEMPLATES),
                metavar="NAME",
                default=_TEMPLATE,
                help=f"template: {_TEMPLATES_SHOWN} (default: {_TEMPLATE})",
            ),
            flag("--list", help="list the templates, and create nothing"),
            in_json(),
        ),
    ),
    Command(
        "doctor",
        "check whether this machine has everything that is needed",
        "Check this machine: Python, the disk for the data, memory, limits, ports, the broker (which is started "
        "for a moment), and installed programs. Reports what each is needed for, and what to do if it is missing. "
        "Given a pipeline, checks only what that needs. Exit code 4 if something is missing. Nothing is changed.",
        (
            path("file", nargs="?", metavar="PIPELINE", help="pipeline file (default: none)"),
            path("--data-dir", metavar="DIR", help="where a run would store everything"),
            in_json(),
        ),
    ),
    Command(
        "schema",
        "print the JSON schema of pipeline files",
        "Print the JSON schema of pipeline files, for editors and other tools. It includes the kinds of sources, "
        "sinks and vertices from the packages that are installed here. `init` writes it to where the first lines "
        "of a pipeline file tell editors to find it; `run` writes it again if it is missing or out of date.",
    ),
    Command(
        "completion",
        "print a script for shell completion",
        "Print the script that lets a shell complete commands, options and values: pipeline files, names of "
        "vertices and edges in them, pipelines that have run here, error codes.",
        (argument("shell", choices=("bash", "zsh", "fish"), help="which shell"),),
    ),
    Command(
        "test",
        "run the tests of functions and pipelines",
        "Run the tests of the functions (with pytest if it is installed, else unittest; `go test` where there is a "
        "go.mod), then each case (*.case.yaml): its records pass through the whole pipeline in place of the "
        "sources, and the records that reach the sinks are compared with those that the case expects. Nothing "
        "reaches the real targets. Exit code 1 if something failed.",
        (
            path(
                "what",
                nargs="?",
                metavar="TESTS",
                help="a directory, a pipeline file, or a case file (default: the current directory)",
            ),
            in_json("prints one JSON object on the last line; output of the tests goes to standard error"),
        ),
    ),
    Command(
        "explain",
        "explain an error code",
        "Explain a code such as MS-4010 (or ms-4010, or 4010): what happened, what it means for the data, and what "
        "to do. Without a code, list all codes; with a word, list the codes whose titles contain it.",
        (
            argument("code", nargs="?", metavar="CODE", help="error code (default: all codes)"),
            in_json(),
        ),
    ),
    Command(
        "connectors",
        "list the kinds of sources and sinks",
        "List the kinds of sources and sinks, including those of installed packages: what each guarantees for "
        "records that have to be sent again, when it ends, and what it needs. With a name, also its options.",
        (
            argument("connector", nargs="?", metavar="CONNECTOR", help="only those with this name, with their options"),
            in_json(),
        ),
    ),
    Command("version", "show versions", "Show the version of Millstream and of what it works with.", (in_json(),)),
    Command(
        "bench",
        "measure this machine",
        "Measure a real pipeline on this machine: generator, a Python function that returns its input, blackhole. "
        "Everything is created in a temporary directory (TMPDIR) and removed. The limit of the broker alone is "
        "measured too.",
        commands=(
            Command(
                "map",
                "records per second, as fast as possible",
                arguments=(
                    number("--records", default=10_000_000, help="(default: 10000000)"),
                    number("--partitions", default=1, help="of the map (default: 1)"),
                    *BENCH_OF_CHAIN,
                    *BENCH,
                ),
            ),
            Command(
                "latency",
                "latency from source to sink at a given rate",
                arguments=(
                    number("--rate", default=1000, help="records per second (default: 1000)"),
                    argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default: 10)"),
                    *BENCH_OF_CHAIN,
                    *BENCH,
                ),
            ),
            Command(
                "reduce",
                "records into windows, and from the close of windows to their results",
                arguments=(
                    number("--ingest-records", default=4_000_000, help="for the rate of the queue (default: 4000000)"),
                    number("--records-per-window", default=100_000, help="in each window (default: 100000)"),
                    number("--keys", default=10_000, help="in each window (default: 10000)"),
                    number("--windows", default=30, help="windows to measure (default: 30)"),
                    number("--rate", default=50_000, help="records per second (default: 50000)"),
                    argument(
                        "--query", metavar="SQL", help="over a window (default: count, first and last time by key)"
                    ),
                    *BENCH,
                ),
            ),
        ),
    ),
    Command(
        "spark",
        "manage the Spark of reduces",
        "Manage the Spark that computes the windows of reduces.",
        commands=(
            Command(
                "prepare",
                "create the cache that halves the time Spark takes to start; once per machine",
                arguments=(
                    flag("--again", help="also if the cache exists"),
                    in_json(),
                ),
            ),
            Command(
                "check",
                "start Spark, or connect to it, and show its version and how long that took",
                arguments=(
                    path("file", nargs="?", metavar="PIPELINE", help="for its `spec.spark` (default: on this machine)"),
                    in_json(),
                ),
            ),
        ),
    ),
    Command(
        "chaos",
        "disturb a running pipeline, and verify its results",
        "Run a pipeline as `run` does, disturb it, and let an independent verifier judge the results: accounts, "
        "sinks, and, for the built-in pipelines (mesh, push, state, windows), every single result. File sinks write "
        "into the directory of the experiment; other sinks write where the pipeline says. The same seed gives the "
        "same plan.",
        (
            argument(
                "pipeline",
                metavar="EXPERIMENT",
                help="a pipeline file, or a built-in pipeline: `mesh`, `push`, `state`, or `windows` (with Spark)",
            ),
            number("--seed", default=1, help="seed of the plan (default: 1)"),
            number("--kills", help="number of faults of all kinds to inject, then wait for the end"),
            argument(
                "--seconds",
                type=float,
                metavar="S",
                help="inject faults for this long once the sinks have records, then drain and end",
            ),
            argument(
                "--faults",
                default="kill",
                metavar="KINDS",
                help="kill, pause, network, disk, separated by commas (default: kill)",
            ),
            path(
                "--dir",
                metavar="DIR",
                help="keep everything here (default: a temporary directory, kept if there are violations)",
            ),
            number("--records", help="records of a built-in pipeline (default: 20000; `windows`: 8000)"),
            number("--keys", help="of the built-in pipeline `state` (default: 1000)"),
            number("--partitions", help="of its vertex that remembers (default: 4)"),
            number(
                "--rate", help="records per second of a built-in pipeline (default: such that they last for all faults)"
            ),
            argument(
                "--ledger",
                metavar="LEDGER",
                help="where records are stored between steps (default: `spec.interStepBuffer`)",
            ),
            number("--workers", help="number of worker processes that share the vertices (default: as for run)"),
            argument("--id", metavar="FIELD", help="field that must be unique among the rows of your sinks"),
            flag(
                "--secured",
                help="encrypt connections to the broker, and run the functions of a built-in pipeline in a strict "
                "sandbox",
            ),
            in_json("prints one JSON object on the last line"),
        ),
    ),
)
"""Each is a module of this package with the same name. Its examples are in `examples`."""


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="millstream",
        description="Event-time streaming pipelines whose steps are functions in any language, exactly once.",
        epilog=_EPILOG,
    )
    top.set_defaults(debug=False)
    top.groups = _GROUPS
    top.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version of Millstream")
    top.add_commands("command", "COMMAND", COMMANDS)
    return top
