"""The command line's grammar: commands, options, help. Nothing is imported here that takes time."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from millstream_runner.cli.parsing import Parser
from millstream_runner.cli.template_names import TEMPLATES

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]

PIPELINE_FILE = "pipeline.yaml"
"""The pipeline file of a directory, where none is named."""

_EPILOG = """\
exit codes:
  0    done: the pipeline has ended, or was drained after Ctrl-C
  1    test: a test failed; chaos: something that is promised did not hold
  2    something for you to change: the pipeline file, an option
  3    a function of yours failed, or cannot be started
  4    the machine or a server: a port taken, a disk full, no permission
  5    stored data is damaged
  70   a defect in Millstream
  130  stopped at once (second Ctrl-C)
"""


_GROUPS = {
    "write and run": ("init", "run", "test", "validate", "graph", "connectors"),
    "look into a run": ("status", "logs", "tap", "peek", "audit", "explain"),
    "mend": ("deadletters", "repair", "watermark", "wal"),
    "machines and brokers": ("doctor", "spark", "bench", "chaos", "broker", "compile"),
    "shells and editors": ("completion", "schema", "version"),
}
"""Commands as `millstream --help` lists them."""


class _Version(argparse.Action):
    """`--version`: one line, and the end. The number is looked up when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"millstream {version('millstream')}")
        parser.exit()


class _Format(argparse.Action):
    """`-o json`: what a command finds out, as JSON instead of text."""

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
    """Its examples stand in `examples`."""
    command = commands.add_parser(name, help=summary, description=description)
    command.set_defaults(module=name)
    return command


def _below(commands: Commands, name: str, summary: str) -> Parser:
    """A command below another one; what it does is said in a sentence."""
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
        "Run a pipeline on this machine: a broker of its own, workers that run its vertices, and your functions.\n"
        "It ends by itself when every source has ended, with a summary. Ctrl-C finishes what is in flight and ends;\n"
        "a second Ctrl-C ends at once. Nothing is lost either way: the next run with the same data directory goes on.",
    )
    _add_pipeline_file(command)
    command.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the run keeps everything (default: .millstream/<pipeline>)"
    )
    command.add_argument(
        "--fresh",
        action="store_true",
        help="remove what earlier runs stored, and start over; refused where file sinks have files of earlier runs",
    )
    command.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="SOURCE",
        help="let a source that is gone from the pipeline go with how far it had read; may be given several times",
    )
    command.add_argument(
        "--move-outputs",
        action="store_true",
        help="when starting over, move files of earlier runs from DIR of a file sink to DIR.before-<time>",
    )
    _add_development(command)
    command.add_argument("--quiet", action="store_true", help="no progress and no summary, only warnings and errors")
    command.add_argument(
        "--ledger",
        metavar="LEDGER",
        help="what keeps the records between steps, `jetstream` or `redis` (default: `spec.interStepBuffer`)",
    )
    command.add_argument(
        "--durability",
        choices=("fsync", "process"),
        default="fsync",
        help="what a commit survives: power loss (fsync, the default) or the death of any process (process; faster)",
    )
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that share the vertices (default: as many as there are processors, and at least two)",
    )
    command.add_argument(
        "--metrics-port-base",
        type=int,
        metavar="PORT",
        help="serve metrics and probes of the workers on this port and the ones after it (default: no ports); "
        "`millstream status` says which is whose",
    )
    command.add_argument(
        "--metrics-host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address that these ports listen on; 0.0.0.0 for all (default: 127.0.0.1)",
    )
    command.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="of the workers, in the logs (default: info)",
    )
    command.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a page about the run at its end, however it ends: rates, account, errors; it opens offline",
    )
    _add_json(command, "prints one JSON object at the end, on the last line: how the run went, and its account")


def _add_development(command: argparse.ArgumentParser) -> None:
    """For the authors of functions."""
    command.add_argument(
        "--watch",
        action="store_true",
        help="restart a function when a file of it changes, while the pipeline goes on; one that cannot be started "
        "is waited for",
    )
    command.add_argument(
        "--debug-function",
        action="append",
        default=[],
        metavar="VERTEX",
        help="have the function of a vertex wait for a debugger (debugpy; VS Code, PyCharm), and never take it for "
        "hung; may be given several times",
    )
    command.add_argument(
        "--debug-port",
        type=int,
        default=5678,
        metavar="PORT",
        help="of this machine, where debuggers attach; further functions and replicas take the next (default: 5678)",
    )


def _add_validate(commands: Commands) -> None:
    command = _command(
        commands,
        "validate",
        "check a pipeline file",
        "Check a pipeline file and what it refers to on this machine (programs, functions, files).\n"
        "Reports every fault at once with file, line, path, what is wrong and what was expected; for a valid\n"
        "file, what its sources and sinks guarantee. Spark analyses the queries of reduces, which takes some seconds.",
    )
    _add_pipeline_file(command)
    command.add_argument(
        "--file-only", action="store_true", help="look at nothing but the file: no programs, no data, no Spark"
    )
    command.add_argument(
        "--online",
        action="store_true",
        help="also have each source and sink try what it talks to: address, credentials, rights, tables and topics; "
        "nothing is changed there",
    )
    command.add_argument(
        "--import",
        action="store_true",
        dest="import_functions",
        help="start each Python function as a run would, and say what cannot be imported or called: missing packages, "
        "wrong arguments and annotations",
    )
    _add_json(command)


def _add_graph(commands: Commands) -> None:
    command = _command(
        commands,
        "graph",
        "draw a pipeline",
        "Draw a pipeline as text, as a Mermaid flow chart, as an SVG picture, or as a page that opens offline.",
    )
    _add_pipeline_file(command)
    command.add_argument("--format", choices=("text", "mermaid", "svg", "html"), default="text", help="(default: text)")
    _add_json(command, "prints vertices and edges as one JSON object")


def _add_compile(commands: Commands) -> None:
    command = _command(
        commands,
        "compile",
        "write what a vertex process takes",
        "Check a pipeline file and write it as the JSON that `python -m millstream_worker --pipeline` takes, to start\n"
        "vertices by hand or by something of your own. It holds no value that the file only refers to.",
    )
    _add_pipeline_file(command)
    command.add_argument("--to", type=Path, metavar="FILE", help="where to (default: standard output)")
    command.add_argument(
        "--base-dir",
        type=Path,
        metavar="DIR",
        help="absolute directory that relative paths start from, where the vertices run (default: that of the file)",
    )


def _add_status(commands: Commands) -> None:
    command = _command(
        commands,
        "status",
        "show how far a run is",
        "Show how far a run is, vertex by vertex and lane by lane; of a run that is over, how far it got.",
    )
    _add_file(command)
    command.add_argument(
        "-w", "--watch", action="store_true", help="go on showing it, live, until the run is over or Ctrl-C"
    )
    _add_place(command)
    _add_broker(command)
    _add_json(command)


def _add_logs(commands: Commands) -> None:
    command = _command(
        commands,
        "logs",
        "show what the processes log",
        "Show what the processes of a run have logged, in order of time.",
    )
    _add_file(command)
    command.add_argument("vertex", nargs="?", metavar="VERTEX", help="only this vertex (or `runner`, or `broker`)")
    command.add_argument("-f", "--follow", action="store_true", help="go on showing what is added, until Ctrl-C")
    command.add_argument(
        "--level",
        choices=("debug", "info", "warning", "error"),
        default="debug",
        help="only lines of this level or worse",
    )
    command.add_argument(
        "--since", metavar="WHEN", help="only lines that are not older: 30s, 10m, 2h, 1d, or a time (RFC 3339)"
    )
    command.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    _add_json(command, "prints one JSON object per line")
    _add_place(command)


def _add_peek(commands: Commands) -> None:
    command = _command(
        commands,
        "peek",
        "show records of a buffer",
        "Show records that lie in the buffer of an edge, without consuming them. Works while the pipeline runs and\n"
        "when it does not. What has been read and committed is removed from a buffer soon after.",
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
        help="begin with this frame (default: the first that is not read and committed)",
    )
    _add_place(command)
    _add_broker(command)
    _add_json(command, "prints one JSON object per record")


def _add_tap(commands: Commands) -> None:
    command = _command(
        commands,
        "tap",
        "show records of an edge as they pass",
        "Show records of an edge as they pass, without any effect on them: nothing waits for the tap, and nothing is\n"
        "kept for it. Says how many it has missed where they pass faster than it can look. Ends with the run.",
    )
    _add_file(command)
    command.add_argument("edge", metavar="EDGE", help="name of the edge (by default `<from>-<to>`)")
    command.add_argument("--partition", type=int, metavar="N", help="only this partition of the edge (default: all)")
    command.add_argument("--key", action="append", metavar="KEY", help="only records with this key; may be repeated")
    command.add_argument("--limit", type=int, metavar="N", help="end after N records")
    command.add_argument("--duration", metavar="TIME", help="end after so long: 30s, 10m, 2h")
    _add_place(command)
    _add_broker(command)
    _add_json(command, "prints one JSON object per record")


def _add_audit(commands: Commands) -> None:
    command = _command(
        commands,
        "audit",
        "show who did what to a pipeline",
        "Show who started, drained, stopped, looked into, replayed or repaired a pipeline, when, and with which spec.",
    )
    _add_file(command)
    command.add_argument(
        "--elsewhere", action="store_true", help="what you did to pipelines over other brokers (`--broker`) instead"
    )
    _add_place(command)
    _add_json(command, "prints one JSON object per entry, with command line and digest of the spec")


def _add_deadletters(commands: Commands) -> None:
    command = _command(
        commands,
        "deadletters",
        "list records that were given up, and put them back",
        "List the dead letters that a pipeline's file sinks have stored, or that wait in its buffers, or put them\n"
        "back to the vertex that gave them up, for the next run. Each is put back once, however often this is done\n"
        "and whenever it is broken off.",
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="WHAT")
    listing = _below(actions, "list", "count them by vertex and reason")
    _add_json(listing, "prints one JSON object per dead letter, with its place")
    replay = _below(actions, "replay", "put them back, while the pipeline does not run")
    _add_json(replay)
    replay.add_argument("--to", metavar="VERTEX", help="give them to this vertex (default: the one that gave them up)")
    for action in (listing, replay):
        action.add_argument(
            "files",
            nargs="*",
            type=Path,
            metavar="FILE",
            help="the pipeline's file; then files of envelopes, or directories (default: those of its sinks)",
        )
        action.add_argument("--stored", action="store_true", help="those that wait in buffers, which no sink has taken")
        action.add_argument("--vertex", metavar="VERTEX", help="only those that this vertex gave up")
        action.add_argument("--reason", metavar="TEXT", help="only those whose reason has this text")
        action.add_argument("--id", action="append", metavar="ID", help="only this record; may be given several times")
        _add_place(action)


def _add_wal(commands: Commands) -> None:
    command = _command(
        commands,
        "wal",
        "look at the logs of reduce lanes",
        "Look at the write-ahead logs of reduce lanes: segments, how far each edge is read, windows that were handed\n"
        "over. Names every fault there is, with exit code 5. Changes nothing; works while the pipeline runs, too.",
    )
    command.add_argument("directory", type=Path, metavar="DIR", help="a log, or a directory with logs below it")
    command.add_argument("--verify", action="store_true", help="compute the checksum of every entry")
    _add_json(command)


def _add_repair(commands: Commands) -> None:
    command = _command(
        commands,
        "repair",
        "say what is damaged, and go on without it",
        "Look for damage in what a pipeline that does not run has stored: ledgers that are gone, commits that are\n"
        "stored in part, marks that went back, a past that was replaced, frames that cannot be used, logs. Says what\n"
        "each affects, and changes nothing; exit code 5 when there is any. With --accept-loss it goes on without what\n"
        "is lost, and says what that is.",
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
        "Write the accounts and users of a NATS server: an account for each pipeline, and in it a user for each\n"
        "vertex, with the rights it needs and no others; or make what has to be there before a vertex starts.",
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="WHAT")
    config = _below(actions, "config", "write accounts.conf, and an access file for each user")
    config.add_argument("files", nargs="+", type=Path, metavar="PIPELINE", help="pipeline files: all of the broker's")
    config.add_argument(
        "--to", type=Path, metavar="DIR", required=True, help="where to; passwords that lie there are kept"
    )
    config.add_argument("--ca", type=Path, metavar="FILE", help="the authority of the server's certificate, for TLS")
    prepare = _below(actions, "prepare", "make the ledgers of a pipeline, which its vertices may not make")
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
        "say where event time has come to, and set it back",
        "Say where the event time of each lane of a pipeline that does not run has come to. With --set-back, say what\n"
        "it costs to have it go on from an earlier time, where a record of a far future has driven it away; with\n"
        "--accept-loss do so.",
    )
    _add_pipeline_file(command)
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory of the run")
    command.add_argument("--set-back", metavar="TIME", help="to `now`, or a time such as 2024-01-31T08:00:00Z")
    command.add_argument("--accept-loss", action="store_true", help="do it, at that cost")
    _add_json(command)


def _add_init(commands: Commands) -> None:
    command = _command(
        commands,
        "init",
        "make a pipeline to begin with",
        "Make a directory with a working pipeline, its function, tests, some data, and files for your editor. The\n"
        "pipeline gets the name of the directory. Nothing is asked, and nothing is written over.",
    )
    command.add_argument(
        "directory",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="where to; made when it does not exist (default: the current directory)",
    )
    default = next(iter(TEMPLATES))
    shown = "; ".join(f"`{name}`: {text}" for name, text in TEMPLATES.items())
    command.add_argument(
        "--template",
        choices=tuple(TEMPLATES),
        metavar="NAME",
        default=default,
        help=f"what to begin with: {shown} (default: {default})",
    )
    command.add_argument("--list", action="store_true", help="list the templates, and make nothing")
    _add_json(command)


def _add_test(commands: Commands) -> None:
    command = _command(
        commands,
        "test",
        "run the tests of functions and pipelines",
        "Run the tests of the functions (with pytest where it is installed, else unittest; `go test` where there is a\n"
        "go.mod), then each case (*.case.yaml): its records go through the whole pipeline in place of the sources,\n"
        "and what comes to the sinks is compared with what the case expects. Nothing reaches the real targets. Exit\n"
        "code 1 when something failed.",
    )
    command.add_argument(
        "what",
        nargs="?",
        type=Path,
        metavar="TESTS",
        help="a directory, a pipeline file, or a case file (default: the current directory)",
    )
    _add_json(command, "prints one JSON object on the last line; what tests print goes to standard error")


def _add_schema(commands: Commands) -> None:
    _command(
        commands,
        "schema",
        "print the JSON schema of pipeline files",
        "Print the JSON schema of pipeline files, for editors and other tools. It has the kinds of sources, sinks and\n"
        "vertices of the packages that are installed here. `init` writes it where the first lines of a pipeline file\n"
        "tell editors to look for it, and `run` writes it again where it is missing or old.",
    )


def _add_doctor(commands: Commands) -> None:
    command = _command(
        commands,
        "doctor",
        "say whether this machine has all that is needed",
        "Look at this machine: Python, the disk of the data, memory, limits, ports, the broker, which is started for\n"
        "a moment, and what is installed. Say what each is needed for, and what to do where it is missing. Given a\n"
        "pipeline, look only at what that needs. Exit code 4 when something is missing. Nothing is changed.",
    )
    command.add_argument("file", nargs="?", type=Path, metavar="PIPELINE", help="pipeline file (default: none)")
    command.add_argument("--data-dir", type=Path, metavar="DIR", help="where a run would keep everything")
    _add_json(command)


def _add_completion(commands: Commands) -> None:
    command = _command(
        commands,
        "completion",
        "print what has a shell complete commands",
        "Print the script that has a shell complete commands, options and values: pipeline files, names of vertices\n"
        "and edges in them, pipelines that have run here, error codes.",
    )
    command.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def _add_connectors(commands: Commands) -> None:
    command = _command(
        commands,
        "connectors",
        "list the kinds of sources and sinks",
        "List the kinds of sources and sinks, those of installed packages too: what each promises about records that\n"
        "have to be sent again, when it ends, and what it needs. With a name, also what may be set.",
    )
    command.add_argument(
        "connector", nargs="?", metavar="CONNECTOR", help="only those of this name, with their options"
    )
    _add_json(command)


def _add_explain(commands: Commands) -> None:
    command = _command(
        commands,
        "explain",
        "say what an error code means",
        "Say what happened, what it means for the data and what to do, for a code such as MS-4010 (or ms-4010, or\n"
        "4010). Without a code, list them all; a word finds codes whose titles have it.",
    )
    command.add_argument("code", nargs="?", metavar="CODE", help="of the error (default: all codes)")
    _add_json(command)


def _add_version(commands: Commands) -> None:
    command = _command(commands, "version", "show versions", "Show the version of Millstream and what it works with.")
    _add_json(command)


def _add_broker(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--broker", metavar="URL", help="look into this broker instead, of a pipeline that runs elsewhere"
    )
    command.add_argument("--broker-access", type=Path, metavar="FILE", help="file with credentials and certificates")
    command.add_argument("--file", type=Path, metavar="PIPELINE", help="file of that pipeline; with --broker")


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "of", nargs="?", type=Path, metavar="PIPELINE", help="pipeline file (default: the only one that was run here)"
    )


def _add_place(command: argparse.ArgumentParser) -> None:
    place = command.add_mutually_exclusive_group()
    place.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory of the run")
    place.add_argument(
        "--pipeline", metavar="NAME", help="pipeline that was run from here (default: the only one there is)"
    )


def _add_json(command: argparse.ArgumentParser, text: str = "prints one JSON object") -> None:
    """The one way to ask for facts as JSON; a command finds it as `arguments.json`."""
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
        "Measure a real pipeline on this machine: generator, a Python function that returns what it gets, blackhole.\n"
        "Everything is made in a temporary directory (TMPDIR) and removed. Beside it the limit of the broker alone.",
    )
    benches = command.add_subparsers(dest="bench", required=True, metavar="WHAT")
    throughput = _below(benches, "map", "records per second, as fast as possible")
    throughput.add_argument("--records", type=int, default=4_000_000, metavar="N", help="(default: 4000000)")
    throughput.add_argument("--keys", type=int, default=0, metavar="N", help="different keys (default: 0, none)")
    throughput.add_argument("--partitions", type=int, default=1, metavar="N", help="of the map (default: 1)")
    latency = _below(benches, "latency", "latency from source to sink at a given rate")
    latency.add_argument("--rate", type=int, default=1000, metavar="N", help="records per second (default: 1000)")
    latency.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default: 10)")
    for bench in (throughput, latency):
        bench.add_argument("--chain", type=int, default=1, metavar="N", help="maps in a chain (default: 1, no chain)")
        bench.add_argument(
            "--unbuffered", action="store_true", help="source, maps and sink are one chain, which has no buffer"
        )
        bench.add_argument("--builtin", action="store_true", help="maps are the built-in `cat`, and not Python")
        bench.add_argument(
            "--tls", action="store_true", help="a second time with encrypted connections to the broker, for comparison"
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
            "--workers", type=int, metavar="N", help="processes that share the vertices (default: as for run)"
        )
        _add_json(bench, "prints one JSON object on the last line")


def _add_spark(commands: Commands) -> None:
    command = _command(
        commands,
        "spark",
        "look after the Spark of reduces",
        "Look after the Spark that computes the windows of reduces.",
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="WHAT")
    prepare = _below(actions, "prepare", "make the cache from which Spark starts in half the time; once")
    prepare.add_argument("--again", action="store_true", help="also when it is there")
    _add_json(prepare)
    check = _below(actions, "check", "start Spark, or reach it, and tell what it is and how long that took")
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
        "disturb a running pipeline, and check what comes out",
        "Run a pipeline as `run` does, disturb it, and have an independent verifier judge what came out: accounts,\n"
        "sinks, and, for the pipelines that ship (mesh, push, windows), every single result. File sinks write below\n"
        "the directory of the experiment; others write where the pipeline says. The same seed gives the same plan.",
    )
    command.add_argument(
        "pipeline",
        metavar="EXPERIMENT",
        help="a pipeline file, or one that ships: `mesh`, `push`, or `windows` (with Spark)",
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="of the plan (default: 1)")
    command.add_argument("--kills", type=int, metavar="N", help="faults of all kinds to inject, then wait for the end")
    command.add_argument("--seconds", type=float, metavar="S", help="inject faults for so long, then drain and end")
    command.add_argument(
        "--faults",
        default="kill",
        metavar="KINDS",
        help="kill, pause, network, disk; several with commas (default: kill)",
    )
    command.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="keep everything here (default: a temporary directory, kept on violations)",
    )
    command.add_argument("--records", type=int, metavar="N", help="of one that ships (default: 20000; `windows`: 8000)")
    command.add_argument(
        "--rate", type=int, metavar="N", help="records per second of one that ships (default: they last for the faults)"
    )
    command.add_argument("--ledger", metavar="LEDGER", help="what keeps the records (default: `spec.interStepBuffer`)")
    command.add_argument(
        "--workers", type=int, metavar="N", help="processes that share the vertices (default: as for run)"
    )
    command.add_argument("--id", metavar="FIELD", help="member of your sinks' rows that no two rows may share")
    command.add_argument(
        "--secured",
        action="store_true",
        help="encrypt connections to the broker, and hold the functions of one that ships in a strict sandbox",
    )
    _add_json(command, "prints one JSON object on the last line")
