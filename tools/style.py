"""The project's own style rules, those that ruff and mypy do not know.

`faults_of_module` looks at one Python file, `faults_of_text` at any committed text; both return one line per
fault and touch nothing. `tests/unit/test_style.py` runs them over the whole repository, and

    python tools/style.py FILE ...

over some of its Python files.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).resolve().parent.parent

PRODUCT = ("millstream", "services", "connectors")
CODE_FOLDERS = (*PRODUCT, "tests", "tools", "examples", "benchmarks")
TEXT_FOLDERS = (*CODE_FOLDERS, "proto", "sdk", "deploy", "docs", "requirements", ".ci")
TEXT_SUFFIXES = frozenset({
    "", ".c", ".cfg", ".conf", ".csv", ".go", ".html", ".in", ".ini", ".java", ".js", ".json", ".md", ".mjs", ".mod",
    ".proto", ".py", ".pyi", ".rs", ".sh", ".sum", ".svg", ".toml", ".ts", ".txt", ".xml", ".yaml", ".yml",
})  # fmt: skip
"""Other files are taken for binary."""

NOT_OURS = frozenset({"__pycache__", "node_modules", "out", "data", "state", "build", "dist"})
"""Folders that tools and runs leave behind; none of them is committed."""

FILE_LINES_MAX = 800
"""A bound against accidents. Modules are cut by idea: ten lines are a module, and so are seven hundred."""
FUNCTION_LINES_MAX = 80

VAGUE_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "misc"})

STARTS_UNOWNED_TASKS = frozenset({"create_task", "ensure_future"})
MAY_START_UNOWNED_TASKS = frozenset({
    # The two directions of a connection end together, awaited by the function that started them.
    "services/runner/millstream_runner/chaos/lossy_path.py",
})  # fmt: skip
"""Files that may start a task outside a TaskGroup, each with its reason. Tests may, if they keep it."""

STARTS_CHILDREN = "tests/support/children.py"
"""The one file of tests that starts a child of asyncio: it ends the child whatever becomes of the test."""

ROUNDS = frozenset({"parse_json", "from_json"})
"""Parsers that turn numbers into floats."""
_HANDLE_VALUES = (
    "millstream/extract.py",
    "millstream/udf/builtin.py",
    "connectors/millstream_connectors/",
    "services/reduce/millstream_reduce/spark/decoding.py",
)
"""Where values of records are read."""
MAY_ROUND = {
    "connectors/millstream_connectors/shared/oauth2/issuer.py": "answers of the issuer",
    "connectors/millstream_connectors/shared/google_cloud/channels.py": "a key of the service",
    "connectors/millstream_connectors/shared/formats/avro.py": "schemas",
    "connectors/millstream_connectors/shared/formats/json_values.py": "schemas",
    "connectors/millstream_connectors/shared/formats/registry.py": "answers of the registry",
    "services/reduce/millstream_reduce/spark/decoding.py": "schemas",
    "connectors/millstream_connectors/shared/decoding_lane.py": "texts, as keys",
    "connectors/millstream_connectors/delta/source/log.py": "the log of the table, whose values have types",
    "connectors/millstream_connectors/delta/opening.py": "the log of the table",
    "connectors/millstream_connectors/shared/positioned_lane.py": "our own positions",
    "connectors/millstream_connectors/postgres/source/catalog.py": "names of columns",
    "connectors/millstream_connectors/redis_streams/source/entries.py": "texts, as keys",
    "connectors/millstream_connectors/bigquery/sink/lane.py": "schemas",
    "connectors/millstream_connectors/bigquery/sink/positions.py": "our own positions",
    "connectors/millstream_connectors/delta/sink.py": "the log of the table",
    "connectors/millstream_connectors/file/sink/bucket.py": "our own claims",
    "connectors/millstream_connectors/iceberg/sink.py": "our own positions",
    "connectors/millstream_connectors/shared/kept.py": "our own positions",
    "connectors/millstream_connectors/opensearch/sink/lane.py": "answers of the server",
    "connectors/millstream_connectors/user_defined/sink/positions.py": "our own positions",
}
"""Files among them that parse JSON otherwise than with `millstream.exact_json`, each with what they parse."""
READS_JSON = frozenset({"json.loads", "json.load", "json.JSONDecoder"})
MAY_READ_JSON = {
    "millstream/json_parser.py": "the one place",
    "millstream/exact_json.py": "values of records, with the same limit",
    "millstream/confine.py": "its own settings, in a process that imports nothing of ours",
    "services/udf_sdk/": "imports nothing of ours",
    "services/runner/millstream_runner/chaos/": "shares no code with what it checks",
    "connectors/millstream_connectors/http/source/records.py": "only finds the ends of elements of a checked array",
}
"""Files and directories in which modules may parse JSON themselves, each with its reason."""
READS_TIMES = frozenset({"datetime.fromtimestamp", "datetime.utcfromtimestamp"})
MAY_READ_TIMES = {
    "millstream/telemetry/logging.py": "the time of a log record of this process",
    "connectors/millstream_connectors/rabbitmq/sink.py": "seconds within its own bounds",
    "services/runner/": "times of this machine's clock and files",
    "services/udf_sdk/": "imports nothing of ours",
}
"""The same for numbers as times."""

MAY_ASK = {
    "millstream/buffers/jetstream/durability.py": "a broker of this machine, for its settings",
    "connectors/millstream_connectors/shared/google_cloud/channels.py": "gives this machine its credentials",
    "connectors/millstream_connectors/iceberg/client.py": "its adapter limits every answer",
    "connectors/millstream_connectors/shared/oauth2/issuer.py": "reads answers in parts, up to a limit",
    "services/runner/millstream_runner/bench/latency.py": "a process that it has started",
    "services/runner/millstream_runner/chaos/": "shares no code with what it checks",
}
"""Files that make HTTP requests otherwise than with `millstream.wire.bodies`, each with what limits the answers."""
_CLIENTS = frozenset(
    {"requests", "urllib.request", "http.client", "urllib3", "httpx", "google.auth.transport.requests"}
)

_CREATES_FILES = frozenset({"write_text", "write_bytes", "touch", "mkdir", "makedirs"})
"""Methods that create a file or a directory, or empty a file, with the rights that the umask leaves."""
MAY_CREATE_FILES = {
    "millstream/files.py": "the one place",
    "services/runner/millstream_runner/local/directory.py": "directories with a mode, each durable before the next",
    "millstream/udf/socket_directory.py": "a lock in a directory that it holds open",
    "millstream/confine.py": "mount points in a file system of its own",
    "millstream/priority.py": "writes to /proc",
    "services/runner/millstream_runner/cli/init.py": "the user's new project, with the user's umask",
    "services/runner/millstream_runner/cli/compile.py": "the file that the user has named",
    "services/runner/millstream_runner/cli/bench.py": "inside a TemporaryDirectory",
    "services/runner/millstream_runner/local/outputs.py": "directories of file sinks, with the user's umask",
    "services/runner/millstream_runner/chaos/oracle": "shares no code with what it judges; in a directory of its own",
    "services/udf_sdk/millstream_udf/imported.py": "in the private directory of the function's socket",
    "services/udf_sdk/millstream_udf/debugging.py": "inside a TemporaryDirectory",
    "services/udf_sdk/millstream_udf/debug_adapter": "in the directory that debugging.py has made",
    "services/udf_sdk/millstream_udf/checking.py": "in the private directory of the function's socket",
    "connectors/millstream_connectors/file/sink/directory.py": "results, with the user's umask, never over a file",
    "connectors/millstream_connectors/iceberg/files.py": "results, with the user's umask",
    "services/reduce/millstream_reduce/spark/java.py": "a cache for all users of an installation",
}
"""Files of the product that may create files by themselves, each with its reason."""

_HOSTS = "|".join(
    re.escape(".".join(parts))
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("yarnpkg", "com"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
        ("maven", "org"),
        ("deb", "debian", "org"),
    )
)
FOREIGN_TEXT = (
    ("names the host of a package registry", re.compile(rf"\b(?:{_HOSTS})\b")),
    (
        "records a download address",
        re.compile(
            r'"?resolved"?[": =]+https?://|^(?:source|url) = .*https?://|url = "https?://[^"]*\.(?:whl|tar\.gz)"'
        ),
    ),
    ("sets a package index", re.compile(r"--(?:extra-)?index-url\b")),
    ("holds a path of one machine", re.compile(r"(?:^|[^a-z.])/(?:work|root|home)/[a-z.]+")),
)


def is_generated(path: PurePosixPath) -> bool:
    """Whether `tools/generate_protos.py` writes this file."""
    return "_pb2" in path.name


def _files_below(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            inner = path.relative_to(REPOSITORY / folder).parts
            if path.is_file() and not any(part in NOT_OURS or part.startswith(".") for part in inner[:-1]):
                yield path


def modules() -> Iterator[Path]:
    """The hand-written Python files."""
    for path in _files_below(CODE_FOLDERS):
        if path.suffix == ".py" and not is_generated(PurePosixPath(path)):
            yield path


def texts() -> Iterator[Path]:
    """The committed text files, generated ones too."""
    yield from (path for path in _files_below(TEXT_FOLDERS) if path.suffix in TEXT_SUFFIXES)
    yield from (
        path
        for path in sorted(REPOSITORY.iterdir())
        # In a second worktree of the repository `.git` is a file.
        if path.is_file() and path.name != ".git" and path.suffix in TEXT_SUFFIXES
    )


def faults_of_text(path: PurePosixPath, text: str) -> list[str]:
    """What a committed file says that is true on one machine only."""
    return [
        f"{path}:{number}: {fault}"
        for number, line in enumerate(text.splitlines(), start=1)
        for fault, pattern in FOREIGN_TEXT
        if pattern.search(line)
    ]


def faults_of_module(path: PurePosixPath, source: str) -> list[str]:
    """What breaks a rule in one hand-written Python file; `path` is relative to the repository."""
    tree = ast.parse(source)
    lines = source.count("\n")
    faults = []
    if lines > FILE_LINES_MAX:
        faults.append(f"{path}: {lines} lines, {FILE_LINES_MAX} are the most; split it by what it is about")
    if VAGUE_NAMES & {*path.parts[:-1], path.stem}:
        faults.append(f"{path}: the name says nothing; name it for what it holds")
    faults += (f"{path}:{line}: {fault}" for line, fault in sorted(_faults_of_nodes(path, tree, source)))
    return faults


def nodes_below(tree: ast.AST) -> Iterator[ast.AST]:
    """As `ast.walk`, in another order and half the time."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                pending.append(value)
            elif isinstance(value, list):
                pending += (item for item in value if isinstance(item, ast.AST))


def called(call: ast.Call) -> str:
    """What is called, as it is written: `ast.unparse` of a name takes ten times as long."""
    names: list[str] = []
    node = call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(names))) if isinstance(node, ast.Name) else ast.unparse(call.func)


def _faults_of_nodes(path: PurePosixPath, tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    # To look at each function once more takes longer than all the rest: only where there may be something.
    may_sleep, may_fill = "asyncio.sleep" in source, source.count(".replace(") > 1
    for node in nodes_below(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    yield node.lineno, f"{node.name} has {length} lines, {FUNCTION_LINES_MAX} are the most"
                if may_sleep and path.parts[0] == "tests" and node.name.startswith("test_"):
                    yield from _sleeps_of_test(node)
                if may_fill:
                    yield from _filled_in_turn(node)
                if isinstance(node, ast.AsyncFunctionDef) and path.parts[0] in PRODUCT:
                    yield from _imports_of_coroutine(node)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method))) if method == "ensure_future":
                yield node.lineno, "starts a task and drops it; a task is awaited where it is started"
            case ast.Call():
                name = called(node)
                yield from _faults_of_call(path, node, name)
                if _must_limit(path):
                    yield from _unlimited_answers(node, name)
            case ast.ImportFrom(module=str(name)) if name in _CLIENTS and _must_limit(path):
                yield node.lineno, f"imports {name}, whose answers have no limit; see millstream/wire/bodies.py"
            case ast.Import(names=names) if any(one.name in _CLIENTS for one in names) and _must_limit(path):
                yield node.lineno, "imports a client whose answers have no limit; see millstream/wire/bodies.py"
            case ast.ImportFrom(module="time") if any(alias.name == "sleep" for alias in node.names):
                yield (
                    node.lineno,
                    "imports time.sleep: it blocks the event loop, and a test that sleeps is slow or flaky",
                )
            case ast.ImportFrom(module="asyncio") if any(alias.name in STARTS_UNOWNED_TASKS for alias in node.names):
                yield node.lineno, "starts tasks without an owner; open a TaskGroup"


def _faults_of_call(path: PurePosixPath, call: ast.Call, name: str) -> Iterator[tuple[int, str]]:
    owner, _, method = name.rpartition(".")
    starts_unowned_task = method in STARTS_UNOWNED_TASKS and (owner == "asyncio" or "loop" in owner)
    in_test = path.parts[0] == "tests"
    if name == "time.sleep" and path.parts[0] in (*PRODUCT, "tests"):
        yield call.lineno, "time.sleep blocks the event loop, and a test that sleeps is slow or flaky"
    if starts_unowned_task and str(path) not in MAY_START_UNOWNED_TASKS and not in_test:
        yield call.lineno, f"{name} starts a task without an owner; open a TaskGroup"
    if in_test and method.startswith("create_subprocess_") and str(path) != STARTS_CHILDREN:
        yield call.lineno, f"a test that fails leaves this process behind; use `started` of {STARTS_CHILDREN}"
    if in_test and name == "asyncio.gather" and not any(word.arg == "return_exceptions" for word in call.keywords):
        yield call.lineno, f"a test that fails leaves the other calls behind; use `together` of {STARTS_CHILDREN}"
    if path.parts[0] in PRODUCT and _creates_files(call, name) and not _may_create_files(path):
        yield (
            call.lineno,
            f"{name} creates or empties a file with the umask's rights; see millstream.files",
        )
    if name in ROUNDS and str(path).startswith(_HANDLE_VALUES) and str(path) not in MAY_ROUND:
        yield call.lineno, f"{name} rounds the numbers of a record; use millstream.exact_json"
    if path.parts[0] in PRODUCT:
        if name in READS_JSON and not str(path).startswith(tuple(MAY_READ_JSON)):
            yield call.lineno, f"{name} has no limit of depth; see millstream.json_parser"
        if name in READS_TIMES and not str(path).startswith(tuple(MAY_READ_TIMES)):
            yield call.lineno, f"{name} raises for times outside the calendar; see millstream.extract"


def _must_limit(path: PurePosixPath) -> bool:
    """Whether the answers that a module reads need a limit."""
    return path.parts[0] in PRODUCT and not str(path).startswith(tuple(MAY_ASK))


def _unlimited_answers(call: ast.Call, name: str) -> Iterator[tuple[int, str]]:
    """Sessions of aiohttp whose answers have any size, and reads of a whole body."""
    limited = any(
        word.arg == "response_class" and "BoundedResponse" in ast.unparse(word.value) for word in call.keywords
    )
    if name.rpartition(".")[2] == "ClientSession" and not limited:
        yield call.lineno, "opens a session whose answers have no limit; give it `BoundedResponse` of millstream.wire"
    if name.endswith(".content.read") and not call.args:
        yield call.lineno, "reads a body of any size; see millstream/wire/bodies.py"


def _creates_files(call: ast.Call, name: str) -> bool:
    method = name.rpartition(".")[2]
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name == "os.open":
        return any(flag in ast.unparse(argument) for argument in given for flag in ("O_CREAT", "O_TRUNC"))
    if method == "open":
        # Of a path the mode comes first, of a name second; what is opened may be a descriptor already.
        texts = [argument.value for argument in given if isinstance(argument, ast.Constant)]
        on_descriptor = name == "open" and bool(call.args) and isinstance(call.args[0], ast.Call | ast.Name)
        modes = (text for text in texts if isinstance(text, str) and re.fullmatch(r"[rwxabt+]{1,4}", text))
        return not on_descriptor and any(set("wxa+") & set(mode) for mode in modes)
    # Without an owner it is a function of the module's own.
    return name != method and method in _CREATES_FILES


def _may_create_files(path: PurePosixPath) -> bool:
    return any(str(place) in MAY_CREATE_FILES for place in (path, *path.parents))


def _imports_of_coroutine(coroutine: ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """Imports that block the event loop: not those of functions within it, which may be called in a thread."""
    inner: list[ast.AST] = list(coroutine.body)
    while inner:
        node = inner.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, f"{coroutine.name} imports on the event loop; see millstream/importing.py"
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner += ast.iter_child_nodes(node)


def _filled_in_turn(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """Placeholders are names in capitals, which a value that was put in before may hold, too."""
    names: dict[str, int] = {}
    for node in nodes_below(function):
        match node:
            case ast.Call(func=ast.Attribute(attr="replace"), args=[ast.Constant(value=str(name)), _]):
                if name.isupper() and name.replace("_", "").isalpha():
                    names.setdefault(name, node.lineno)
    if len(names) > 1:
        what = f"fills in {', '.join(sorted(names))} one after the other, and a value may hold the next name"
        yield min(names.values()), f"{what}; use string.Template"


def _sleeps_of_test(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """Sleeps of a test itself. Polling in a loop is a wait, and `sleep(0)` lets others run; both may stay."""
    pending: list[ast.AST] = list(test.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.While | ast.For | ast.AsyncFor | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Call) and re.match(r"asyncio\.sleep\((?!0\))", ast.unparse(node)):
            yield node.lineno, "a test waits for an event, with a limit; it does not sleep"
        pending += ast.iter_child_nodes(node)


def main() -> int:
    """Looks at the named files."""
    here = [PurePosixPath(Path(name).resolve().relative_to(REPOSITORY)) for name in sys.argv[1:]]
    ours = [path for path in here if path.parts[0] in CODE_FOLDERS and not is_generated(path)]
    texts = {path: (REPOSITORY / path).read_text(encoding="utf-8") for path in ours}
    faults = [fault for path, text in texts.items() for fault in faults_of_module(path, text)]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
