"""Examples of each command, for its help. A test checks that every command has one, and that they are valid."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """The command line as typed."""

    what: str
    """What it does."""
    command: str


EXAMPLES: dict[tuple[str, ...], tuple[Example, ...]] = {
    (): (
        Example("create a directory with a pipeline to start with", "millstream init hello"),
        Example("run its pipeline.yaml until its sources have ended", "millstream run"),
        Example("see its progress, from another terminal", "millstream status"),
        Example("check whether this machine has everything that is needed", "millstream doctor"),
    ),
    ("run",): (
        Example("run until every source has ended, or Ctrl-C", "millstream run pipeline.yaml"),
        Example("restart a function when you save it", "millstream run pipeline.yaml --watch"),
        Example("wait for a debugger in a function", "millstream run pipeline.yaml --debug-function price"),
        Example("remove what earlier runs stored, and start over", "millstream run pipeline.yaml --fresh"),
        Example(
            "serve metrics on port 9100 and the following ones", "millstream run pipeline.yaml --metrics-port-base 9100"
        ),
        Example("write a page about the run at its end", "millstream run pipeline.yaml --report report.html"),
        Example("see what a changed file requires of the stored data", "millstream run pipeline.yaml --dry-run"),
        Example(
            "begin with a savepoint, in a new data directory",
            "millstream run pipeline.yaml --data-dir new --from-savepoint before-the-change",
        ),
    ),
    ("validate",): (
        Example("all problems with a file, and with what it refers to", "millstream validate pipeline.yaml"),
        Example("also what cannot be imported or called", "millstream validate --import pipeline.yaml"),
        Example("also whether its sources and sinks can be reached", "millstream validate --online pipeline.yaml"),
        Example("only the file, for a pre-commit hook", "millstream validate --file-only pipeline.yaml"),
        Example("as JSON, for scripts", "millstream validate -o json pipeline.yaml"),
    ),
    ("graph",): (
        Example("draw it as text", "millstream graph pipeline.yaml"),
        Example("draw it for a Markdown page", "millstream graph pipeline.yaml --format mermaid"),
        Example("as a page to open in a browser", "millstream graph pipeline.yaml --format html > pipeline.html"),
    ),
    ("compile",): (
        Example(
            "for workers on machines where the files are in /app",
            "millstream compile p.yaml --base-dir /app --to p.json",
        ),
        Example("the Kubernetes Secrets that pods have to mount", "millstream compile p.yaml --secrets"),
    ),
    ("status",): (
        Example("the pipeline that was started from this directory", "millstream status"),
        Example("one of several, by its file", "millstream status pipeline.yaml"),
        Example("keep updating", "millstream status --watch"),
        Example("the waiting records of each vertex, as JSON", "millstream status -o json"),
    ),
    ("logs",): (
        Example("everything, ordered by time", "millstream logs"),
        Example("keep printing what one vertex logs", "millstream logs price --follow"),
        Example("warnings and errors of the last ten minutes", "millstream logs --level warning --since 10m"),
    ),
    ("peek",): (
        Example("records that wait on the edge from read to price", "millstream peek read-price"),
        Example("three of them, as JSON", "millstream peek read-price --count 3 -o json"),
    ),
    ("savepoint",): (
        Example("keep what the only pipeline here remembers", "millstream savepoint before-the-change"),
        Example("somewhere else, of a pipeline by its file", "millstream savepoint monday pipeline.yaml --to /backups"),
        Example("which there are", "millstream savepoint"),
    ),
    ("state", "list"): (
        Example("what the vertex totals remembers", "millstream state list totals"),
        Example("of the keys that begin with a, as JSON", "millstream state list totals --prefix a -o json"),
        Example("the page after the key alice", "millstream state list totals --after alice"),
    ),
    ("state", "get"): (
        Example("what is remembered for a key", "millstream state get totals --key alice"),
        Example("for a key of two parts, one state", "millstream state get totals --key alice --key eu --name total"),
    ),
    ("state", "watch"): (Example("what changes for a key", "millstream state watch totals --key alice -o json"),),
    ("state", "export"): (
        Example("all of it, into a file", "millstream state export totals --to totals.jsonl"),
        Example("one state, as Parquet", "millstream state export totals --name total --to totals.parquet"),
    ),
    ("state", "import"): (
        Example("before the first run", "millstream state import pipeline.yaml totals --from totals.jsonl"),
    ),
    ("state", "edit"): (
        Example("another total for a key", "millstream state edit totals --key alice --name total --value 1200"),
    ),
    ("state", "delete"): (
        Example("forget a key", "millstream state delete totals --key alice"),
        Example("forget everything", "millstream state delete totals --prefix ''"),
    ),
    ("tap",): (
        Example("records as they pass from read to price", "millstream tap read-price"),
        Example("the next ten with the key EUR, as JSON", "millstream tap read-price --key EUR --limit 10 -o json"),
        Example("records that pass in the next minute", "millstream tap read-price --duration 1m"),
    ),
    ("audit",): (
        Example("who did what to the pipeline orders", "millstream audit --pipeline orders"),
        Example("what you did to pipelines elsewhere", "millstream audit --elsewhere"),
    ),
    ("deadletters", "list"): (
        Example("how many there are, by vertex and reason", "millstream deadletters list pipeline.yaml"),
        Example("each of those that `price` gave up, as JSON", "millstream deadletters list --vertex price -o json"),
    ),
    ("deadletters", "replay"): (
        Example("replay what `price` gave up, once it is fixed", "millstream deadletters replay p.yaml --vertex price"),
        Example("replay what a source gave up, to a vertex", "millstream deadletters replay --to price out/unreadable"),
    ),
    ("repair",): (
        Example("report damage, and change nothing", "millstream repair pipeline.yaml"),
        Example("continue without what is lost", "millstream repair pipeline.yaml --accept-loss"),
    ),
    ("wal",): (
        Example("inspect the logs of all reduces of a run", "millstream wal .millstream/orders/windows"),
        Example("read every entry, and compare its checksum", "millstream wal .millstream/orders/windows --verify"),
    ),
    ("watermark",): (
        Example("how far event time has come", "millstream watermark pipeline.yaml"),
        Example("what it would cost to set it back", "millstream watermark pipeline.yaml --set-back now"),
    ),
    ("broker", "config"): (
        Example("users for two pipelines", "millstream broker config orders.yaml clicks.yaml --to users"),
    ),
    ("broker", "prepare"): (
        Example(
            "the ledgers of a pipeline",
            "millstream broker prepare orders.yaml --broker nats://broker:4222",
        ),
    ),
    ("init",): (
        Example("orders that get a price, one by one", "millstream init hello"),
        Example("windows of event time, with Spark", "millstream init readings --template reduce"),
        Example("what there is", "millstream init --list"),
    ),
    ("test",): (
        Example("functions, and pipelines on their cases", "millstream test"),
        Example("one case", "millstream test orders.case.yaml"),
        Example("as JSON, for scripts", "millstream test -o json"),
    ),
    ("schema",): (Example("for an editor", "millstream schema > pipeline.schema.json"),),
    ("connectors",): (
        Example("all of them, and what each guarantees", "millstream connectors"),
        Example("the options of files", "millstream connectors file"),
        Example("as JSON, for scripts", "millstream connectors -o json"),
    ),
    ("explain",): (
        Example("what a code means, and what to do", "millstream explain MS-4010"),
        Example("codes about disks", "millstream explain disk"),
    ),
    ("version",): (Example("of Millstream and of what it works with", "millstream version"),),
    ("bench", "map"): (
        Example("records per second", "millstream bench map"),
        Example("the same, sooner and less exactly", "millstream bench map --records 400000"),
        Example("of a chain of four maps", "millstream bench map --chain 4"),
        Example("without any buffer", "millstream bench map --unbuffered"),
    ),
    ("bench", "latency"): (
        Example("at a thousand records per second", "millstream bench latency"),
        Example("at ten thousand, for a minute", "millstream bench latency --rate 10000 --seconds 60"),
    ),
    ("bench", "reduce"): (Example("windows of ten thousand keys", "millstream bench reduce --windows 10"),),
    ("spark", "prepare"): (Example("once for an installation", "millstream spark prepare"),),
    ("spark", "check"): (
        Example("the Spark of this machine", "millstream spark check"),
        Example("the one that a pipeline uses", "millstream spark check pipeline.yaml"),
    ),
    ("chaos",): (
        Example("kill processes of a built-in pipeline", "millstream chaos mesh --kills 30"),
        Example(
            "kill and pause those of your own pipeline", "millstream chaos pipeline.yaml --kills 50 --faults kill,pause"
        ),
    ),
    ("doctor",): (
        Example("whether this machine has everything that is needed", "millstream doctor"),
        Example("everything that one pipeline needs", "millstream doctor pipeline.yaml"),
        Example("as JSON, for scripts", "millstream doctor -o json"),
    ),
    ("completion",): (
        Example("for this bash", 'eval "$(millstream completion bash)"'),
        Example("for every zsh", "millstream completion zsh > ~/.zfunc/_millstream"),
        Example("for every fish", "millstream completion fish > ~/.config/fish/completions/millstream.fish"),
    ),
}


def examples_of(path: tuple[str, ...]) -> tuple[Example, ...]:
    """The examples of a command; for a command with subcommands, the first example of each."""
    own = EXAMPLES.get(path)
    if own is not None:
        return own
    below = [found for command, found in EXAMPLES.items() if command[: len(path)] == path]
    return tuple(found[0] for found in below)
