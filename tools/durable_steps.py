"""The durable steps of the code (`millstream/durable.py`), read from it: their list, and what should be one and is not.

    python tools/durable_steps.py            the list, as docs/crash-points.md
    python tools/durable_steps.py --check    exit code 1 when that page is not up to date, or a step is missing

A durable primitive is a call that changes a file system's names or makes its contents durable, that changes a stream of
the broker, or that tells something outside that a record is safe. Each has to lie inside a `with step(...)` of the same
function; functions that are all primitive (the seam of the log's files) are primitives themselves.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.style import REPOSITORY, called, is_generated, modules

PAGE = REPOSITORY / "docs" / "crash-points.md"
LOOKED_AT = ("millstream", "services", "connectors")

_OS = (
    "fsync|fdatasync|rename|renames|replace|link|symlink|unlink|remove|mkdir|makedirs|rmdir|removedirs|truncate|"
    "ftruncate|write|pwrite|pwritev|posix_fallocate"
)
PRIMITIVES = re.compile(
    "|".join((
        rf"os\.({_OS})|sync_path",
        r"shutil\.(rmtree|move|copy|copy2|copyfile|copytree)",
        r".*\.(mkdir|rmdir|unlink|touch|rename|hardlink_to|symlink_to|write_text|write_bytes)",
        r"self\._files\.(create|write|sync|publish|reserve|remove|sync_directory)",
        r"files\.(create|write|sync|publish|reserve|remove|sync_directory)",
        r"write_all|_sync_directory|write_private|create_private|make_private_directories",
        r".*connection\.(publish|send_request|change|remove)|until_created",
        r"self\._source\.committed|self\._stream\.confirm",
        r"lane\.write",
        r".*(init_transactions|commit_transaction)",
        r"self\._jobs\.compute",
        r"obstore\.(put|delete|copy|rename).*",
        r"write_deltalake|DeltaTable\.create|.*\.create_write_transaction",
        r"self\._registry\.register",
        r".*\._do_commit|.*\.commit_transaction|.*\.create_namespace|_dataframe_to_data_files",
    ))
)  # fmt: skip
"""Calls, as they are written."""
CHANGES_STREAM = re.compile(r"STREAM\.(CREATE|UPDATE|DELETE|PURGE|\{)")
"""Requests to the broker that change something: in a text among the arguments of a call."""
NAMES_A_PATH = re.compile(r".*(path|temporary|written|file)\.replace")
"""`replace` of a path, not of a text."""

EXEMPT: Mapping[tuple[str, str], str] = {
    (
        "services/runner/millstream_runner/doctor/machine.py",
        "_sync_ms",
    ): "measures how long the disk takes; the file has no name",
    ("services/reduce/millstream_reduce/log/files.py", ""): "the seam itself: its callers are looked at",
    (
        "connectors/millstream_connectors/delta/sink.py",
        "DeltaLaneTable._make_durable",
    ): "of what the step before it has made",
    ("services/runner/millstream_runner/local/directory.py", "_sync_directory"): "its callers are looked at",
    ("services/udf_sdk/hatch_build.py", ""): "what a build makes, before anything runs",
    ("services/udf_sdk/millstream_udf/imported.py", ""): "read while the process runs, and gone with it",
    ("services/runner/millstream_runner/cases/running.py", ""): "in a TemporaryDirectory that is gone with the test",
    ("services/reduce/millstream_reduce/spark/aot.py", ""): "a cache of the JVM: recreated when it is gone",
    ("services/reduce/millstream_reduce/spark/java.py", ""): "launchers and command lines: recreated when gone",
    ("services/reduce/millstream_reduce/spark/session.py", ""): "Spark's scratch space: emptied at every start",
    ("services/reduce/millstream_reduce/spark/jvm.py", ""): "how the driver finds its JVM: gone with both",
    ("services/reduce/millstream_reduce/spark/preparing.py", ""): "windows to warm up with, in Spark's scratch space",
    ("millstream/udf/", ""): "sockets of sidecars: recreated at every start",
    ("services/runner/millstream_runner/chaos/", ""): "not part of a run",
    ("connectors/millstream_testing/", ""): "tests of connectors, not part of a run",
    ("services/runner/millstream_runner/cli/", ""): "what a command makes for its user once: new projects, benchmarks",
    ("services/runner/millstream_runner/local/state_files.py", ""): "an export that a command writes for its user",
    ("services/runner/millstream_runner/bench/running.py", ""): "a benchmark's own files",
    ("millstream/buffers/jetstream/technology.py", "_raw_limit"): "a benchmark's own stream",
    ("millstream/buffers/jetstream/technology.py", "_write_raw"): "a benchmark's own stream",
    ("services/runner/millstream_runner/bench/reducing.py", ""): "a benchmark's own files",
    ("services/runner/millstream_runner/local/broker.py", ""): "the broker's settings: written again at every start",
    ("services/runner/millstream_runner/local/spark.py", ""): "the driver's settings: written again at every start",
    ("services/runner/millstream_runner/local/logfiles.py", ""): "what processes say; not kept safe",
    ("millstream/files.py", ""): "its callers are looked at",
    (
        "connectors/millstream_connectors/iceberg/files.py",
        "",
    ): "its callers are looked at: a file is closed inside a step",
    ("connectors/millstream_connectors/iceberg/sink.py", "IcebergLaneTable._put"): "its callers are looked at",
    ("millstream/confine.py", ""): "a file system in memory, gone with its function",
    ("millstream/sandbox.py", "refusal"): "a temporary directory, gone when it was tried",
    ("millstream/audit.py", ""): "an account for people: nothing is decided by it",
    ("millstream/priority.py", ""): "a file of the kernel's about the process",
    ("millstream/health.py", ""): "a pipe between a process and its supervisor",
    ("millstream/wire/", ""): "the connection itself: its callers are looked at",
    ("millstream/nats/connection.py", ""): "the connection itself: its callers are looked at",
    ("millstream/buffers/redis/connection.py", ""): "the connection itself: its callers are looked at",
    ("millstream/buffers/jetstream/server.py", "JetStreamServer.ended"): "shows only that the server is ready",
    ("millstream/buffers/servers.py", "LocalServer.prepare"): "the server's directory: created again at every start",
    ("millstream/buffers/servers.py", "SeparateServer"): "a server of a test or a benchmark",
    ("millstream/buffers/redis/ledger.py", "remove_matching"): "its callers are looked at",
    ("millstream/buffers/redis/ledger.py", "RedisLedger._land"): "inside the steps redis.commit and redis.take_over",
    ("millstream/buffers/jetstream/pages.py", ""): "a request for what is stored",
    ("millstream/buffers/jetstream/requests.py", "until_created"): "inside the steps ledger.make and watermark.make",
    ("millstream/buffers/redis/ot_store.py", "RedisOtStore._put_after"): "inside the step redis.publish",
    ("millstream/nats/pulling.py", ""): "requests for messages, and a consumer that the broker forgets",
    ("millstream/buffers/jetstream/references.py", "request_apart"): "a request for what is stored",
    ("millstream/buffers/jetstream/sending.py", "send_commit"): "inside the steps ledger.commit and ledger.take_over",
    ("millstream/buffers/jetstream/ot_store.py", "JetStreamOtStore._put_after"): "inside the step watermark.publish",
    ("millstream/buffers/jetstream/ot_store.py", "JetStreamOtStore._read_all"): "a request for what is stored",
    ("connectors/millstream_connectors/file/source/", ""): "a source keeps nothing: its position is in the mark",
    ("connectors/millstream_connectors/http/source/", ""): "a source keeps nothing: its position is in the mark",
    ("connectors/millstream_connectors/jetstream/source.py", ""): "a source keeps nothing: its position is in the mark",
    (
        "connectors/millstream_connectors/file/sink/directory.py",
        "LaneDirectory._sync_own",
    ): "its callers are inside steps",
    ("connectors/millstream_connectors/log/sink.py", ""): "inside the step sink.write",
    ("millstream/descriptors.py", ""): "standard output: what a log sink prints is inside the step sink.write",
    ("millstream/print_channel.py", ""): "inside the step sink.write",
    (
        "connectors/millstream_connectors/jetstream/sink.py",
        "JetStreamKeptLane._send",
    ): "inside the steps jetstream_sink.commit and jetstream_sink.take_over",
    ("connectors/millstream_connectors/jetstream/sink.py", "JetStreamIdLane"): "inside the step sink.write",
    ("connectors/millstream_connectors/nats/sink.py", ""): "inside the step sink.write",
}
"""Path, or the beginning of one, and function ("" for all, or the beginning of a name), with the reason."""


@dataclass(frozen=True, slots=True)
class Step:
    """One `with step(...)`."""

    name: str
    path: PurePosixPath
    line: int
    function: str
    does: str
    """First sentence of the docstring of the function around it, or of its class."""


@dataclass(frozen=True, slots=True)
class _Module:
    """What one module holds."""

    steps: list[Step]
    faults: list[str]


class _Visitor(ast.NodeVisitor):
    def __init__(self, path: PurePosixPath) -> None:
        self.path = path
        self.steps: list[Step] = []
        self.faults: list[str] = []
        self._names: list[str] = []
        self._docstrings: list[str] = []
        self._inside = 0

    def _visit_scope(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names.append(node.name)
        self._docstrings.append((ast.get_docstring(node) or "").partition("\n")[0])
        # What a function does that is only defined inside a step happens whenever it is called.
        outside, self._inside = self._inside, 0
        self.generic_visit(node)
        self._inside = outside
        self._names.pop()
        self._docstrings.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _visit_scope  # ast's names

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> None:
        found = [item.context_expr for item in node.items if _is_step(item.context_expr)]
        for call in found:
            self._note(call)
        for item in node.items:
            self.visit(item.context_expr)
        self._inside += bool(found)
        for statement in node.body:
            self.visit(statement)
        self._inside -= bool(found)

    visit_With = visit_AsyncWith = _visit_with  # as above

    def visit_Call(self, node: ast.Call) -> None:  # as above
        written = called(node)
        if not self._inside and not self._exempt() and _is_primitive(written, node):
            self.faults.append(
                f"{self.path}:{node.lineno}: {written} outside any step: put it into `with step(...)` "
                "(millstream/durable.py), or name it in tools/durable_steps.py with the reason"
            )
        self.generic_visit(node)

    def _note(self, call: ast.expr) -> None:
        assert isinstance(call, ast.Call)
        name = call.args[0] if call.args else None
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            self.faults.append(f"{self.path}:{call.lineno}: the name of a step is a literal")
            return
        if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name.value):
            self.faults.append(f"{self.path}:{call.lineno}: a step is named like log.entries.sync, not {name.value!r}")
        says = next((text for text in reversed(self._docstrings) if text), "")
        self.steps.append(Step(name.value, self.path, call.lineno, ".".join(self._names), says))

    def _exempt(self) -> bool:
        function = ".".join(self._names)
        return any(str(self.path).startswith(path) and function.startswith(name) for path, name in EXEMPT)


def _is_step(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and called(node) == "step"


def _is_primitive(written: str, call: ast.Call) -> bool:
    if PRIMITIVES.fullmatch(written) or (NAMES_A_PATH.fullmatch(written) and len(call.args) == 1):
        return True
    return any(CHANGES_STREAM.match(ast.unparse(part).strip("'\"f")) for part in call.args)


def look(path: PurePosixPath, source: str) -> _Module:
    """The steps of one module, and its durable primitives that are in none."""
    visitor = _Visitor(path)
    visitor.visit(ast.parse(source))
    return _Module(visitor.steps, visitor.faults)


@cache
def _sources() -> dict[PurePosixPath, str]:
    """Of the modules that may have durable steps."""
    relative = {PurePosixPath(path.relative_to(REPOSITORY).as_posix()): path for path in modules()}
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in relative.items()
        if name.parts[0] in LOOKED_AT and not is_generated(name)
    }


@cache
def _looked_at(path: PurePosixPath) -> _Module:
    return look(path, _sources()[path])


@cache
def steps() -> tuple[Step, ...]:
    """Every step of the code, by name."""
    # Tests ask for them while they are collected, and to look at everything takes seconds.
    found = [_looked_at(path) for path, source in _sources().items() if "step(" in source]
    return tuple(sorted((step for module in found for step in module.steps), key=lambda step: step.name))


def faults() -> list[str]:
    """Durable primitives outside any step, and names that are not names of one step."""
    found = [fault for path in _sources() for fault in _looked_at(path).faults]
    places: dict[str, Step] = {}
    for step in steps():
        if step.name in places:
            first = places[step.name]
            found.append(f"{step.path}:{step.line}: {step.name} is the name of {first.path}:{first.line} too")
        places[step.name] = step
    return found


def page() -> str:
    """docs/crash-points.md."""
    lines = [
        "# Crash points",
        "",
        "Every action whose effect outlives the process, or is visible outside it, is a durable step. Before and after",
        "each step is a point at which a process can be made to die, as if by `kill -9`:",
        "",
        "```console",
        "$ MILLSTREAM_CRASH_AT=log.entries.sync:after millstream run pipeline.yaml",
        "```",
        "",
        "`log.entries.sync:before` is the moment before the step, and `:after` the moment after it, if it succeeds.",
        "With `#3` the process dies the third time; with `@sum` only steps of vertex `sum` count:",
        "`log.entries.sync:after#3@sum`. The variable applies to every process of the run, and each counts for itself.",
        "So a vertex that is restarted dies again.",
        "",
        "In normal operation a point costs a tenth of a microsecond. `tests/recovery/test_crash_points.py` kills small",
        "pipelines at every point, and at pairs of points, where the second one hits the recovery from the first.",
        "`benchmarks/crash_points.py` does that for all pairs.",
        "",
        "A test reports durable actions in the code that are not steps, and steps that this table lacks.",
        "",
        "<!-- Generated by tools/durable_steps.py from the code. -->",
        "",
        "| step | function | what the function does |",
        "|---|---|---|",
    ]
    lines += [f"| `{step.name}` | `{step.path.stem}.{step.function}` | {step.does} |" for step in steps()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    if arguments != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"{len(steps())} steps in {PAGE.relative_to(REPOSITORY)}")
        return 0
    found = faults()
    if PAGE.read_text(encoding="utf-8") != page():
        found.append("docs/crash-points.md is not what the code says: run tools/durable_steps.py")
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
