"""The command line's grammar: commands, options, help. Nothing is imported here that takes time."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from millstream_runner.cli.parsing import Parser
from millstream_runner.cli.run_arguments import add_run_arguments
from millstream_runner.cli.template_names import TEMPLATES

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

PIPELINE_FILE = "pipeline.yaml"
"""The pipeline file that is used if none is named."""

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
    "inspect a run": ("status", "logs", "tap", "peek", "audit", "explain"),
    "repair": ("deadletters", "repair", "watermark", "wal"),
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


class _Format(argparse.Action):
    """`-o json`: prints the facts as JSON instead of text."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, _: object = None
    ) -> None:
        namespace.json = values == "json"


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
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_validate(commands)
    _add_graph(commands)
    _add_compile(commands)
    _add_status(commands)
    _add_logs(commands)
    _add_peek(commands)
    _add_tap(commands)
    _add_audit(commands)
    _add_deadletters(commands)
    _add_wal(commands)
    _add_repair(commands)
    _add_broker_users(commands)
    _add_watermark(commands)
    _add_init(commands)
    _add_doctor(commands)
    _add_schema(commands)
    _add_completion(commands)
    _add_test(commands)
    _add_explain(commands)
    _add_connectors(commands)
    _add_version(commands)
    _add_bench(commands)
    _add_spark(commands)
    _add_chaos(commands)
    return top


def _command(commands: Commands, name: str, summary: str, description: str) -> Parser:
    """Its examples are in `examples`."""
    command = commands.add_parser(name, help=summary, description=description)
    command.set_defaults(module=name)
    return command


def _below(commands: Commands, name: str, summary: str) -> Parser:
    """A subcommand, described in one sentence."""
    return commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")


def _add_pipeline_file(command: Parser) -> None:
    command.add_argument(
        "file",
        nargs="?",
        type=Path,
        default=Path(PIPELINE_FILE),
        metavar="PIPELINE",
        help=f"pipeline file (default: {PIPELINE_FILE})",
    )


def _add_run(commands: Commands) -> None:
    command = _command(
        commands,
        "run",
        "run a pipeline on this machine",
        "Run a pipeline on this machine, with a broker of its own, workers for its vertices, and your functions. "
        "The run ends when every source has ended, and prints a summary. Ctrl-C drains it; a second Ctrl-C stops it at "
        "once. Nothing is lost either way: the next run with the same data directory continues.",
    )
    _add_pipeline_file(command)
    add_run_arguments(command)
    _add_json(command, "prints one JSON object on the last line: the outcome of the run, and its account")


def _add_validate(commands: Commands) -> None:
    command = _command(
        commands,
        "validate",
        "check a pipeline file",
        "Check a pipeline file and what it refers to on this machine (programs, functions, files). Reports every "
        "problem at once, with file, line, path, what is wrong and what was expected; for a valid file, reports "
        "what its sources and sinks guarantee. Spark analyses the queries of reduces, which takes some seconds.",
    )
    _add_pipeline_file(command)
    command.add_argument("--file-only", action="store_true", help="check only the file: no programs, no data, no Spark")
    command.add_argument(
        "--online",
        action="store_true",
        help="also let each source and sink try its server: address, credentials, permissions, tables and topics; "
        "nothing is changed there",
    )
    command.add_argument(
        "--import",
        action="store_true",
        dest="import_functions",
        help="start each Python function as a run would, and report what cannot be imported or called: missing "
        "packages, wrong arguments and annotations",
    )
    _add_json(command)


def _add_graph(commands: Commands) -> None:
    command = _command(
        commands,
        "graph",
        "draw a pipeline",
        "Draw a pipeline as text, as a Mermaid flow chart, as an SVG image, or as a page that opens offline.",
    )
    _add_pipeline_file(command)
    command.add_argument("--format", choices=("text", "mermaid", "svg", "html"), default="text", help="(default: text)")
    _add_json(command, "prints vertices and edges as one JSON object")


def _add_compile(commands: Commands) -> None:
    command = _command(
        commands,
        "compile",
        "write the input of a worker process",
        "Check a pipeline file and write it as the JSON that `python -m millstream_worker --pipeline` reads, so "
        "that you can start vertices by hand or with your own tools. Values that the file only refers to are not "
        "included.",
    )
    _add_pipeline_file(command)
    command.add_argument("--to", type=Path, metavar="FILE", help="output file (default: standard output)")
    command.add_argument(
        "--base-dir",
        type=Path,
        metavar="DIR",
        help="absolute directory on the machine where the vertices run, to which relative paths are resolved "
        "(default: the directory of the file)",
    )
    command.add_argument(
        "--secrets",
        action="store_true",
        help="instead, print the volumes that the pod of each vertex mounts for its Kubernetes Secrets",
    )


def _add_status(commands: Commands) -> None:
    command = _command(
        commands,
        "status",
        "show the progress of a run",
        "Show the progress of a run, by vertex and by lane; for a run that is over, how far it got.",
    )
    _add_file(command)
    command.add_argument("-w", "--watch", action="store_true", help="keep updating until the run is over or Ctrl-C")
    _add_place(command)
    _add_broker(command)
    _add_json(command)


def _add_logs(commands: Commands) -> None:
    command = _command(
        commands,
        "logs",
        "show the logs of the processes",
        "Show what the processes of a run have logged, ordered by time.",
    )
    _add_file(command)
    command.add_argument("vertex", nargs="?", metavar="VERTEX", help="only this vertex (or `runner`, or `broker`)")
    command.add_argument("-f", "--follow", action="store_true", help="keep printing new lines until Ctrl-C")
    command.add_argument(
        "--level",
        choices=("debug", "info", "warning", "error"),
        default="debug",
        help="only lines of at least this level",
    )
    command.add_argument(
        "--since", metavar="WHEN", help="only lines since then: 30s, 10m, 2h, 1d, or a time (RFC 3339)"
    )
    command.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    _add_json(command, "prints one JSON object per line")
    _add_place(command)


def _add_peek(commands: Commands) -> None:
    command = _command(
        commands,
        "peek",
        "show records of a buffer",
        "Show records in the buffer of an edge, without consuming them. Works whether or not the pipeline is "
        "running. Records are removed from a buffer soon after they have been read and committed.",
    )
    _add_file(command)
    command.add_argument("edge", metavar="EDGE", help="name of the edge (by default `<from>-<to>`)")
    command.add_argument("--partition", type=int, default=0, metavar="N", help="partition of the edge (default: 0)")
    command.add_argument("--count", type=int, default=10, metavar="N", help="records to show at most (default: 10)")
    command.add_argument(
        "--from",
        dest="start",
        type=int,
        metavar="SEQUENCE",
        help="start at this frame (default: the first one that is not read and committed)",
    )
    _add_place(command)
    _add_broker(command)
    _add_json(command, "prints one JSON object per record")


def _add_tap(commands: Commands) -> None:
    command = _command(
        commands,
        "tap",
        "show records on an edge as they pass",
        "Show records on an edge as they pass, without affecting them: nothing waits for the tap, and nothing is "
        "kept for it. If records pass faster than it can read them, it reports how many it has missed. Ends with "
        "the run.",
    )
    _add_file(command)
    command.add_argument("edge", metavar="EDGE", help="name of the edge (by default `<from>-<to>`)")
    command.add_argument("--partition", type=int, metavar="N", help="only this partition of the edge (default: all)")
    command.add_argument("--key", action="append", metavar="KEY", help="only records with this key; may be repeated")
    command.add_argument("--limit", type=int, metavar="N", help="end after N records")
    command.add_argument("--duration", metavar="TIME", help="end after this time: 30s, 10m, 2h")
    _add_place(command)
    _add_broker(command)
    _add_json(command, "prints one JSON object per record")


def _add_audit(commands: Commands) -> None:
    command = _command(
        commands,
        "audit",
        "show who did what to a pipeline",
        "Show who started, drained, stopped, inspected, replayed or repaired a pipeline, when, and with which spec.",
    )
    _add_file(command)
    command.add_argument(
        "--elsewhere", action="store_true", help="instead, what you did to pipelines on other brokers (`--broker`)"
    )
    _add_place(command)
    _add_json(command, "prints one JSON object per entry, with the command line and a digest of the spec")


def _add_deadletters(commands: Commands) -> None:
    command = _command(
        commands,
        "deadletters",
        "list dead letters, and replay them",
        "List the dead letters that file sinks of a pipeline have stored, or that wait in its buffers; or return "
        "them to the vertex that gave them up, for the next run. Each is replayed once, no matter how often this "
        "is run or when it is interrupted.",
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="WHAT")
    listing = _below(actions, "list", "count them by vertex and reason")
    _add_json(listing, "prints one JSON object per dead letter, with its place")
    replay = _below(actions, "replay", "replay them; the pipeline must not be running")
    _add_json(replay)
    replay.add_argument(
        "--to", metavar="VERTEX", help="replay them to this vertex (default: the vertex that gave them up)"
    )
    for action in (listing, replay):
        action.add_argument(
            "files",
            nargs="*",
            type=Path,
            metavar="FILE",
            help="the pipeline's file; then files of dead letters, or directories (default: those of its sinks)",
        )
        action.add_argument(
            "--stored", action="store_true", help="those that still wait in buffers, which no sink has stored"
        )
        action.add_argument("--vertex", metavar="VERTEX", help="only those that this vertex gave up")
        action.add_argument("--reason", metavar="TEXT", help="only those whose reason contains this text")
        action.add_argument("--id", action="append", metavar="ID", help="only this record; can be repeated")
        _add_place(action)


def _add_wal(commands: Commands) -> None:
    command = _command(
        commands,
        "wal",
        "inspect the logs of reduce lanes",
        "Inspect the write-ahead logs of reduce lanes: segments, how far each edge has been read, windows that "
        "were handed over. Reports every fault, with exit code 5. Changes nothing, and also works while the "
        "pipeline is running.",
    )
    command.add_argument("directory", type=Path, metavar="DIR", help="a log, or a directory that contains logs")
    command.add_argument("--verify", action="store_true", help="verify the checksum of every entry")
    _add_json(command)


def _add_repair(commands: Commands) -> None:
    command = _command(
        commands,
        "repair",
        "report damage, and continue without what is lost",
        "Look for damage in the stored data of a pipeline that is not running: missing ledgers, commits that are "
        "stored in part, marks that went back, a past that was replaced, unusable frames, logs. Reports what each "
        "of them affects, and changes nothing; exit code 5 if there is any. With --accept-loss, continues without "
        "what is lost, and reports what that is.",
    )
    _add_pipeline_file(command)
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory of the run")
    command.add_argument("--accept-loss", action="store_true", help="give up what cannot be recovered")
    _add_json(command)


def _add_broker_users(commands: Commands) -> None:
    command = _command(
        commands,
        "broker",
        "set up the users of a broker that pipelines share",
        "Write the accounts and users of a NATS server: an account for each pipeline, and in it a user for each "
        "vertex, with only the permissions it needs; or create what has to exist before a vertex starts.",
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="WHAT")
    config = _below(actions, "config", "write accounts.conf, and an access file for each user")
    config.add_argument(
        "files", nargs="+", type=Path, metavar="PIPELINE", help="pipeline files: all pipelines of the broker"
    )
    config.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        required=True,
        help="output directory; passwords that are already there are kept",
    )
    config.add_argument("--ca", type=Path, metavar="FILE", help="the certificate authority of the server, for TLS")
    prepare = _below(
        actions, "prepare", "create the ledgers of a pipeline, which its vertices may not create themselves"
    )
    _add_pipeline_file(prepare)
    prepare.add_argument("--broker", metavar="URL", required=True, help="the broker")
    prepare.add_argument("--broker-access", type=Path, metavar="FILE", help="access file of the pipeline's own user")
    prepare.add_argument(
        "--durability",
        choices=("fsync", "process", "unverified"),
        default="fsync",
        help="what a commit must survive (default: fsync)",
    )
    for action in (config, prepare):
        _add_json(action)


def _add_watermark(commands: Commands) -> None:
    command = _command(
        commands,
        "watermark",
        "show how far event time has come, and set it back",
        "Show the event time of each lane of a pipeline that is not running. With --set-back, show what it would "
        "cost to continue from an earlier time, after a record from the far future has moved it ahead; with "
        "--accept-loss, do so.",
    )
    _add_pipeline_file(command)
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory of the run")
    command.add_argument("--set-back", metavar="TIME", help="to `now`, or to a time such as 2024-01-31T08:00:00Z")
    command.add_argument("--accept-loss", action="store_true", help="do it, at that cost")
    _add_json(command)


def _add_init(commands: Commands) -> None:
    command = _command(
        commands,
        "init",
        "create a pipeline to start with",
        "Create a directory with a working pipeline, its function, tests, sample data, and files for your editor. "
        "The pipeline is named after the directory. The command asks nothing and overwrites nothing.",
    )
    command.add_argument(
        "directory",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="directory; created if it does not exist (default: the current directory)",
    )
    default = next(iter(TEMPLATES))
    shown = "; ".join(f"`{name}`: {text}" for name, text in TEMPLATES.items())
    command.add_argument(
        "--template",
        choices=tuple(TEMPLATES),
        metavar="NAME",
        default=default,
        help=f"template: {shown} (default: {default})",
    )
    command.add_argument("--list", action="store_true", help="list the templates, and create nothing")
    _add_json(command)


def _add_test(commands: Commands) -> None:
    command = _command(
        commands,
        "test",
        "run the tests of functions and pipelines",
        "Run the tests of the functions (with pytest if it is installed, else unittest; `go test` where there is a "
        "go.mod), then each case (*.case.yaml): its records pass through the whole pipeline in place of the "
        "sources, and the records that reach the sinks are compared with those that the case expects. Nothing "
        "reaches the real targets. Exit code 1 if something failed.",
    )
    command.add_argument(
        "what",
        nargs="?",
        type=Path,
        metavar="TESTS",
        help="a directory, a pipeline file, or a case file (default: the current directory)",
    )
    _add_json(command, "prints one JSON object on the last line; output of the tests goes to standard error")


def _add_schema(commands: Commands) -> None:
    _command(
        commands,
        "schema",
        "print the JSON schema of pipeline files",
        "Print the JSON schema of pipeline files, for editors and other tools. It includes the kinds of sources, "
        "sinks and vertices from the packages that are installed here. `init` writes it to where the first lines "
        "of a pipeline file tell editors to find it; `run` writes it again if it is missing or out of date.",
    )


def _add_doctor(commands: Commands) -> None:
    command = _command(
        commands,
        "doctor",
        "check whether this machine has everything that is needed",
        "Check this machine: Python, the disk for the data, memory, limits, ports, the broker (which is started "
        "for a moment), and installed programs. Reports what each is needed for, and what to do if it is missing. "
        "Given a pipeline, checks only what that needs. Exit code 4 if something is missing. Nothing is changed.",
    )
    command.add_argument("file", nargs="?", type=Path, metavar="PIPELINE", help="pipeline file (default: none)")
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="where a run would store everything")
    _add_json(command)


def _add_completion(commands: Commands) -> None:
    command = _command(
        commands,
        "completion",
        "print a script for shell completion",
        "Print the script that lets a shell complete commands, options and values: pipeline files, names of "
        "vertices and edges in them, pipelines that have run here, error codes.",
    )
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def _add_connectors(commands: Commands) -> None:
    command = _command(
        commands,
        "connectors",
        "list the kinds of sources and sinks",
        "List the kinds of sources and sinks, including those of installed packages: what each guarantees for "
        "records that have to be sent again, when it ends, and what it needs. With a name, also its options.",
    )
    command.add_argument(
        "connector", nargs="?", metavar="CONNECTOR", help="only those with this name, with their options"
    )
    _add_json(command)


def _add_explain(commands: Commands) -> None:
    command = _command(
        commands,
        "explain",
        "explain an error code",
        "Explain a code such as MS-4010 (or ms-4010, or 4010): what happened, what it means for the data, and what "
        "to do. Without a code, list all codes; with a word, list the codes whose titles contain it.",
    )
    command.add_argument("code", nargs="?", metavar="CODE", help="error code (default: all codes)")
    _add_json(command)


def _add_version(commands: Commands) -> None:
    command = _command(
        commands, "version", "show versions", "Show the version of Millstream and of what it works with."
    )
    _add_json(command)


def _add_broker(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--broker", metavar="URL", help="inspect this broker instead, for a pipeline that runs elsewhere"
    )
    command.add_argument("--broker-access", type=Path, metavar="FILE", help="file with credentials and certificates")
    command.add_argument("--file", type=Path, metavar="PIPELINE", help="file of that pipeline; with --broker")


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "of",
        nargs="?",
        type=Path,
        metavar="PIPELINE",
        help="pipeline file (default: the only pipeline that was run here)",
    )


def _add_place(command: argparse.ArgumentParser) -> None:
    place = command.add_mutually_exclusive_group()
    place.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory of the run")
    place.add_argument("--pipeline", metavar="NAME", help="pipeline that was run from here (default: the only one)")


def _add_json(command: argparse.ArgumentParser, text: str = "prints one JSON object") -> None:
    """The one option for facts as JSON; commands read it as `arguments.json`."""
    command.add_argument(
        "-o",
        "--output",
        dest="json",
        action=_Format,
        default=False,
        choices=("text", "json"),
        metavar="FORMAT",
        help=f"`text` (the default) or `json`, which {text}",
    )


def _add_bench(commands: Commands) -> None:
    command = _command(
        commands,
        "bench",
        "measure this machine",
        "Measure a real pipeline on this machine: generator, a Python function that returns its input, blackhole. "
        "Everything is created in a temporary directory (TMPDIR) and removed. The limit of the broker alone is "
        "measured too.",
    )
    benches = command.add_subparsers(dest="bench", required=True, metavar="WHAT")
    throughput = _below(benches, "map", "records per second, as fast as possible")
    throughput.add_argument("--records", type=int, default=10_000_000, metavar="N", help="(default: 10000000)")
    throughput.add_argument("--keys", type=int, default=0, metavar="N", help="different keys (default: 0, none)")
    throughput.add_argument("--partitions", type=int, default=1, metavar="N", help="of the map (default: 1)")
    latency = _below(benches, "latency", "latency from source to sink at a given rate")
    latency.add_argument("--rate", type=int, default=1000, metavar="N", help="records per second (default: 1000)")
    latency.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default: 10)")
    for bench in (throughput, latency):
        bench.add_argument("--chain", type=int, default=1, metavar="N", help="maps in a chain (default: 1, no chain)")
        bench.add_argument("--from-source", action="store_true", help="the source is part of the chain")
        bench.add_argument("--unbuffered", action="store_true", help="source, maps and sink are one chain")
        bench.add_argument(
            "--compression", choices=("none", "lz4", "zstd", "gzip"), default="none", help="(default: none)"
        )
        bench.add_argument("--builtin", action="store_true", help="use the built-in `cat` for the maps, not Python")
        bench.add_argument(
            "--tls", action="store_true", help="measure again with encrypted connections to the broker, for comparison"
        )
    reduce = _below(benches, "reduce", "records into windows, and from the close of windows to their results")
    for option, default, text in (
        ("--ingest-records", 4_000_000, "for the rate of the queue"),
        ("--records-per-window", 100_000, "in each window"),
        ("--keys", 10_000, "in each window"),
        ("--windows", 30, "windows to measure"),
        ("--rate", 50_000, "records per second"),
    ):
        reduce.add_argument(option, type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    reduce.add_argument("--query", metavar="SQL", help="over a window (default: count, first and last time by key)")
    for bench in (throughput, latency, reduce):
        bench.add_argument("--size", type=int, default=100, metavar="BYTES", help="of each record (default: 100)")
        bench.add_argument("--durability", choices=("fsync", "process"), default="fsync", help="(default: fsync)")
        bench.add_argument(
            "--ledger", metavar="LEDGER", default="jetstream", help="what keeps the records (default: jetstream)"
        )
        bench.add_argument(
            "--workers",
            type=int,
            metavar="N",
            help="number of worker processes that share the vertices (default: as for run)",
        )
        _add_json(bench, "prints one JSON object on the last line")


def _add_spark(commands: Commands) -> None:
    command = _command(
        commands,
        "spark",
        "manage the Spark of reduces",
        "Manage the Spark that computes the windows of reduces.",
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="WHAT")
    prepare = _below(actions, "prepare", "create the cache that halves the time Spark takes to start; once per machine")
    prepare.add_argument("--again", action="store_true", help="also if the cache exists")
    _add_json(prepare)
    check = _below(actions, "check", "start Spark, or connect to it, and show its version and how long that took")
    check.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="PIPELINE",
        help="for its `spec.spark` (default: on this machine)",
    )
    _add_json(check)


def _add_chaos(commands: Commands) -> None:
    command = _command(
        commands,
        "chaos",
        "disturb a running pipeline, and verify its results",
        "Run a pipeline as `run` does, disturb it, and let an independent verifier judge the results: accounts, "
        "sinks, and, for the built-in pipelines (mesh, push, windows), every single result. File sinks write into "
        "the directory of the experiment; other sinks write where the pipeline says. The same seed gives the same "
        "plan.",
    )
    command.add_argument(
        "pipeline",
        metavar="EXPERIMENT",
        help="a pipeline file, or a built-in pipeline: `mesh`, `push`, or `windows` (with Spark)",
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the plan (default: 1)")
    command.add_argument(
        "--kills", type=int, metavar="N", help="number of faults of all kinds to inject, then wait for the end"
    )
    command.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="inject faults for this long once the sinks have records, then drain and end",
    )
    command.add_argument(
        "--faults",
        default="kill",
        metavar="KINDS",
        help="kill, pause, network, disk, separated by commas (default: kill)",
    )
    command.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="keep everything here (default: a temporary directory, kept if there are violations)",
    )
    command.add_argument(
        "--records", type=int, metavar="N", help="records of a built-in pipeline (default: 20000; `windows`: 8000)"
    )
    command.add_argument(
        "--rate",
        type=int,
        metavar="N",
        help="records per second of a built-in pipeline (default: such that they last for all faults)",
    )
    command.add_argument(
        "--ledger", metavar="LEDGER", help="where records are stored between steps (default: `spec.interStepBuffer`)"
    )
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="number of worker processes that share the vertices (default: as for run)",
    )
    command.add_argument("--id", metavar="FIELD", help="field that must be unique among the rows of your sinks")
    command.add_argument(
        "--secured",
        action="store_true",
        help="encrypt connections to the broker, and run the functions of a built-in pipeline in a strict sandbox",
    )
    _add_json(command, "prints one JSON object on the last line")
