"""`millstream init`: creates a working pipeline with a function, tests and some data."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError, UserError
from millstream.spec.values import NAME_LENGTH_MAX
from millstream_runner.cli.answer import answer
from millstream_runner.cli.arguments import PIPELINE_FILE, TEMPLATES
from millstream_runner.cli.editor import MODELINE, write_schema

_SUFFIX = ".template"
"""Template files have this suffix, so that no tool mistakes them for modules and tests of Millstream."""
_HIDDEN = "dot-"
"""Stands for the leading dot of a name, because packaging tools omit hidden files."""
_COMMON = "common"
"""The files of all templates; a template's own file takes precedence."""
_PIPELINE = Path(PIPELINE_FILE)
_GO_SDK = Path("millstream-sdk")
"""Where a Go project has the SDK, according to its `go.mod`."""
_FUNCTIONS = {
    "map": "price",
    "state": "account",
    "source": "convert",
    "sink": "table",
    "async": "lookup",
    "batch": "score",
    "http": "price",
}
"""The vertex to debug, by template."""
_WITHOUT_PYTHON_FUNCTIONS = ("go", "connector")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        width = max(map(len, TEMPLATES))
        answer(arguments, {"templates": TEMPLATES}, (f"{name:<{width}}  {text}" for name, text in TEMPLATES.items()))
        return 0
    template: str = arguments.template
    target: Path = arguments.directory or Path()
    if target.exists() and not target.is_dir():
        raise UserError(codes.PATH_EXISTS, f"{target} is a file; nothing was written. Specify a directory")
    name = name_of(target)
    package = re.sub(r"^(?=\d)", "_", name.replace("-", "_"))
    words = name.split("-")
    values = {
        "name": _yaml_text(name),
        "module": name,
        "package": package,
        "kind": words[0] + "".join(word.title() for word in words[1:]),
        "function": _FUNCTIONS.get(template, ""),
    }
    contents = _contents(template, values)
    taken = sorted(path for path in contents if (target / path).exists())
    if taken:
        more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise UserError(
            codes.PATH_EXISTS,
            f"{target / taken[0]} already exists{more}; nothing was written. Choose another directory",
        )
    written = _write(target, contents)
    lines = [
        f"wrote pipeline {name} ({template}: {TEMPLATES[template]}) to {target}:",
        "  " + "  ".join(sorted({path.parts[0] for path in contents})),
        f"next: {_next_step(template, target)}",
    ]
    answer(arguments, {"directory": str(target), "files": [str(path) for path in written]}, lines)
    return 0


def name_of(directory: Path) -> str:
    """The name of a pipeline: that of its directory, without the characters that a pipeline's name may not have."""
    name = re.sub(r"[^a-z0-9]+", "-", directory.absolute().resolve().name.lower())
    return name[:NAME_LENGTH_MAX].strip("-") or "pipeline"


def _yaml_text(name: str) -> str:
    """The name as a YAML scalar: unquoted digits would be a number."""
    return name if name[0].isalpha() and name not in ("null", "true", "false") else f'"{name}"'


def _next_step(template: str, target: Path) -> str:
    there = "" if target.resolve() == Path.cwd() else f"cd {shlex.quote(str(target))} && "
    build = {"go": "go build -o words . && ", "connector": "pip install -e . && "}.get(template, "")
    changed = {"go": "main.go", "connector": "lane.py"}.get(template, "functions.py")
    return f"{there}{build}millstream run, then change {changed}; see README.md"


def _contents(template: str, values: Mapping[str, str]) -> dict[Path, bytes]:
    """The files of a new project, with the placeholders replaced."""
    templates = files("millstream_runner.cli") / "templates"
    found = _files_below(templates / _COMMON, Path()) | _files_below(templates / template, Path())
    if template in _WITHOUT_PYTHON_FUNCTIONS:
        # There is no Python function to attach to.
        found = {path: text for path, text in found.items() if path.parts[0] not in (".vscode", ".run")}
    found[_PIPELINE] = MODELINE + found[_PIPELINE]
    filled = {Path(_filled(str(path), values)): _filled(text, values).encode() for path, text in found.items()}
    return filled | (_go_sdk() if template == "go" else {})


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _files_below(folder: Traversable, path: Path) -> dict[Path, str]:
    found: dict[Path, str] = {}
    for entry in folder.iterdir():
        name = "." + entry.name.removeprefix(_HIDDEN) if entry.name.startswith(_HIDDEN) else entry.name
        if entry.is_dir():
            found |= _files_below(entry, path / name)
        elif name.endswith(_SUFFIX):
            found[path / name.removesuffix(_SUFFIX)] = entry.read_text(encoding="utf-8")
    return found


def _go_sdk() -> dict[Path, bytes]:
    """The files of the Go SDK: next to the templates in a wheel, in its own directory in a checkout."""
    module = Path(str(files("millstream_runner.cli"))) / "go_sdk"
    if not module.is_dir():
        module = Path(__file__).parents[4] / "sdk" / "go"
    if not (module / "go.mod").is_file():
        raise InfrastructureError(codes.CANNOT_READ, f"this installation has no Go SDK: {module} is missing")
    return {
        _GO_SDK / path.relative_to(module): path.read_bytes() for path in sorted(module.rglob("*")) if path.is_file()
    }


def _write(target: Path, contents: Mapping[Path, bytes]) -> list[Path]:
    """Write the files, and the schema that editors look for next to the pipeline. Returns their paths."""
    try:
        for path, content in contents.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            # A file that was created in the meantime is not overwritten.
            with (target / path).open("xb") as file:
                file.write(content)
        return [*(target / path for path in contents), write_schema(target)]
    except OSError as error:
        raise InfrastructureError(codes.CANNOT_WRITE, f"cannot write {error.filename}: {error.strerror}") from error
