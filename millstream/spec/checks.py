"""Checks that this machine has everything a pipeline refers to: programs, functions, files, directories.

Above: `validate` and `run`. User code is never imported; functions are looked up in the syntax tree.
"""

import ast
import os
import shutil
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path as FilePath

from millstream import codes
from millstream.nearest import near_file, one_of
from millstream.sandbox import holds_home, refusal
from millstream.spec.connectors import Place
from millstream.spec.loading import LoadedPipeline, Partial
from millstream.spec.models import Program
from millstream.spec.needs import needed_by, not_installed
from millstream.spec.problems import Finding, Path, Problem
from millstream.spec.references import Reference, missing, resolve
from millstream.spec.values import Needed, SpecModel


def local_problems(loaded: LoadedPipeline | Partial) -> list[Problem]:
    """Everything that this machine lacks for a run of the pipeline, as far as the file can be understood."""
    findings: list[Finding] = []
    taken: dict[Hashable, Path] = {}
    served: dict[str, Program] = {}
    if isinstance(loaded, LoadedPipeline):
        findings += _needs_findings(loaded.pipeline.spec.needs(), ("spec",))
    if isinstance(loaded, LoadedPipeline) and loaded.pipeline.spec.spark is not None:
        findings += _reference_findings(loaded.pipeline.spec.spark, ("spec", "spark"), loaded.base_dir)
    for index, vertex in loaded.sound.items():
        path: Path = ("spec", "vertices", index)
        findings += _reference_findings(vertex, path, loaded.base_dir)
        for item in vertex.programs:
            where = (*path, vertex.key, *item.path)
            findings += _program_findings(_Program(item.program, where, loaded.base_dir))
            findings += _shared_findings(item.program, where, served)
        findings += vertex.definition.local_findings(vertex.settings, (*path, vertex.key))
        for placed in vertex.ends:
            end = placed.end
            used = Place((*path, vertex.key, *placed.path, end.kind), path, loaded.base_dir, vertex.replicas, taken)
            findings += _needs_findings(needed_by(end), used.path[:-1])
            findings += end.connector.local_findings(end.settings, used)
    problems = [loaded.problem(finding) for finding in findings]
    return sorted(problems, key=lambda problem: (problem.line, problem.column, problem.path))


def _needs_findings(needed: Iterable[Needed], path: Path) -> Iterator[Finding]:
    for one in not_installed(needed):
        yield Finding(codes.EXTRA_NEEDED, (*path, *one.loc), f"`{one.loc[-1]}` {one.what}", one.remedy)


def _shared_findings(program: Program, path: Path, served: dict[str, Program]) -> Iterator[Finding]:
    """A problem if an earlier program is the same process, which has one config. `served`: those so far, by address."""
    if program.address is None:
        return
    first = served.setdefault(program.address, program)
    for name in ("config", "secrets"):
        if (getattr(first, name) or {}) != (getattr(program, name) or {}):
            what = f"another vertex has other `{name}` for the program at {program.address}"
            yield Finding(codes.FIELDS_CONFLICT, (*path, "address"), what, f"a program for each, or the same `{name}`")


@dataclass(frozen=True, slots=True)
class _Program:
    """A user's program at its place, with the directory that it would run in."""

    settings: Program
    path: Path
    base_dir: FilePath

    @property
    def directory(self) -> FilePath:
        return self.base_dir / (self.settings.working_dir or ".")


def _program_findings(program: _Program) -> Iterator[Finding]:
    settings = program.settings
    if settings.container is not None:
        yield Finding(
            codes.FUNCTION_IN_CONTAINER,
            (*program.path, "container"),
            "this machine's runner does not start containers",
            "`command` or `python`; `millstream validate --file-only` accepts it",
        )
        return
    if not program.directory.is_dir():
        what = f"there is no directory {program.directory}"
        yield Finding(codes.NO_SUCH_FILE, (*program.path, "workingDir"), what, "an existing directory")
    elif settings.command is not None:
        yield from _command_findings(program, settings.command[0])
    elif settings.python is not None:
        yield from _python_findings(program, settings.python)
    yield from _held_findings(program)


def _held_findings(program: _Program) -> Iterator[Finding]:
    """Problems if this machine cannot apply the program's limits or sandbox; this is tried."""
    settings = program.settings
    strict = settings.sandbox is not None
    for index, name in enumerate(settings.readable):
        path = (*program.path, "readable", index)
        shown = program.base_dir / name
        if not shown.exists():
            yield Finding(codes.NO_SUCH_FILE, path, f"there is no {shown}", "an existing file or directory")
        elif holds_home(shown):
            yield Finding(
                codes.SANDBOX_IMPOSSIBLE,
                path,
                f"{shown} contains your home directory",
                "a directory without your home directory in it",
            )
    if strict and holds_home(program.directory):
        what = f"the sandbox would show {program.directory}, which contains your home directory"
        yield Finding(
            codes.SANDBOX_IMPOSSIBLE, (*program.path, "sandbox"), what, "a `workingDir` that contains only code"
        )
        return
    limits = settings.limits.given if settings.limits is not None else {}
    if strict or limits:
        why = refusal(strict=strict, network=settings.network, limits=frozenset(limits))
        if why is not None:
            yield Finding(
                codes.SANDBOX_IMPOSSIBLE,
                (*program.path, "sandbox" if strict else "limits"),
                why,
                "a system that supports it, or neither `sandbox` nor `limits`",
            )


def _command_findings(program: _Program, command: str) -> Iterator[Finding]:
    path = (*program.path, "command", 0)
    search = _variable(program, "PATH", os.environ.get("PATH", os.defpath))
    if os.sep not in command:
        if shutil.which(command, path=search) is None:
            yield Finding(codes.NO_SUCH_FILE, path, f"there is no program `{command}` in PATH", "an installed program")
        return
    file = program.directory / command
    if not file.is_file():
        what = f"there is no file {file}{near_file(file)}"
        yield Finding(codes.NO_SUCH_FILE, path, what, "a program, relative to the working directory")
    elif not os.access(file, os.X_OK):
        yield Finding(codes.FILE_UNUSABLE, path, f"{file} is not executable", f"`chmod +x {file}`")


def _variable(program: _Program, name: str, default: str) -> str:
    """The value of a variable in the program's environment, as far as it can be looked up."""
    value = next((variable.value for variable in program.settings.env if variable.name == name), default)
    return resolve(value, program.base_dir, name) if missing(value, program.base_dir) is None else default


def _python_findings(program: _Program, reference: str) -> Iterator[Finding]:
    path = (*program.path, "python")
    module, _, function = reference.rpartition(":")
    if module.endswith(".py"):
        wanted = program.directory / module
        file: FilePath | None = wanted
        if not wanted.is_file():
            what = f"there is no file {wanted}{near_file(wanted)}"
            yield Finding(codes.NO_SUCH_FILE, path, what, "a file, relative to the working directory")
            return
    else:
        found = _module_file(module, program)
        if found is None:
            what = f"there is no Python module `{module}`"
            yield Finding(codes.FUNCTION_NOT_FOUND, path, what, f"an installed module, or one in {program.directory}")
            return
        file = found if found.suffix == ".py" else None
    if file is None:
        return
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as problem:
        yield Finding(
            codes.FUNCTION_NOT_FOUND, path, f"{file} is not Python: {problem}", "a file that Python can compile"
        )
    except OSError as problem:
        yield Finding(
            codes.FILE_UNUSABLE, path, f"{file} cannot be read: {problem.strerror}", "a file that you may read"
        )
    else:
        names = top_level_names(tree)
        if names is not None and function not in names:
            offered = sorted(name for name in names if not name.startswith("_"))
            yield Finding(
                codes.FUNCTION_NOT_FOUND,
                path,
                f"{file} has no `{function}`",
                one_of(function, offered) if offered else "a function",
            )


def _module_file(module: str, program: _Program) -> FilePath | None:
    """The file of a module, found as the import system would, without running any of it."""
    extra = _variable(program, "PYTHONPATH", "")
    # The function's process finds Python's own modules first (`millstream_udf.loading`).
    own = [] if module.partition(".")[0] in sys.stdlib_module_names else [str(program.directory)]
    search: list[str] | None = [*own, *filter(None, extra.split(os.pathsep)), *sys.path]
    name, spec = "", None
    for part in module.split("."):
        if search is None:
            return None
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
    return FilePath(spec.origin) if spec is not None and spec.origin else None


def top_level_names(tree: ast.Module) -> set[str] | None:
    """The names a module binds at its top level; None when `import *` makes them unknowable."""
    names: set[str] = set()
    open_: list[ast.stmt] = list(tree.body)
    while open_:
        statement = open_.pop()
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" for alias in statement.names):
                return None
            names |= {alias.asname or alias.name.split(".")[0] for alias in statement.names}
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.stmt):
                open_.append(node)
            elif isinstance(node, ast.ExceptHandler):
                open_.extend(node.body)
            else:
                names |= {
                    inner.id
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
                }
    return names


def _reference_findings(value: object, path: Path, base_dir: FilePath) -> Iterator[Finding]:
    """A problem for every unavailable reference in a value, at any depth."""
    if isinstance(value, Reference):
        why = missing(value, base_dir)
        if why is not None:
            yield Finding(codes.SECRET_MISSING, path, why, "a value there before the pipeline starts")
    elif isinstance(value, SpecModel):
        for name, member in value.members():
            yield from _reference_findings(member, (*path, name), base_dir)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _reference_findings(entry, (*path, str(key)), base_dir)
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from _reference_findings(entry, (*path, index), base_dir)
