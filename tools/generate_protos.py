"""Generates the wire modules from `proto/`; `--check` says which committed ones are stale.

The SDK is a distribution of its own, so it owns the modules that it needs (`frame`, `udf`) as
`millstream_udf.wire`; all the others belong to `millstream.wire`. protoc derives import paths from the
paths of the proto files, so the imports in what it wrote are turned to the package that owns the module.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROTO_ROOT = REPOSITORY / "proto"

SDK_MODULES = frozenset({"frame", "udf"})
"""The folders below `proto/millstream/` whose generated modules belong to the SDK."""

SDK_WIRE = Path("services/udf_sdk/millstream_udf/wire")
MESH_WIRE = Path("millstream/wire")

_GENERATED_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
_PROTO_PACKAGE = re.compile(r"\bmillstream\.(\w+)\.(v\d+)(?=( import )|\.\w+_pb2)")


def wire_of(folder: str) -> tuple[Path, str]:
    """The directory and the import path of the wire package that owns `proto/millstream/<folder>`."""
    if folder in SDK_MODULES:
        return SDK_WIRE, "millstream_udf.wire"
    return MESH_WIRE, "millstream.wire"


def _with_owner(match: re.Match[str]) -> str:
    _, package = wire_of(match[1])
    return f"{package}.{match[1]}.{match[2]}"


def _with_owned_imports(source: str) -> str:
    """Turns the imports of proto packages, and the names used through them, to their owners."""
    lines = source.split("\n")
    return "\n".join(line if "AddSerializedFile" in line else _PROTO_PACKAGE.sub(_with_owner, line) for line in lines)


def _run_protoc(output: Path) -> None:
    sources = sorted(PROTO_ROOT.rglob("*.proto"))
    scripts = Path(sys.executable).parent
    command = [
        sys.executable,
        *("-m", "grpc_tools.protoc"),
        f"--proto_path={PROTO_ROOT}",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--python_out={output}",
        f"--grpc_python_out={output}",
        f"--mypy_out=quiet:{output}",
        f"--mypy_grpc_out=quiet:{output}",
        *(str(source) for source in sources),
    ]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("protoc failed; its own messages stand above")


def generate(target: Path) -> set[Path]:
    """Writes every generated module below `target`; returns their paths, relative to it."""
    written: set[Path] = set()
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch)
        _run_protoc(raw)
        for source in sorted(raw.rglob("*_pb2*")):
            text = source.read_text()
            if "_grpc" in source.name and "Stub" not in text:
                continue  # protoc writes a grpc module for files without a service too
            _, folder, version, name = source.relative_to(raw).parts
            wire, _ = wire_of(folder)
            package = wire / folder / version
            module = package / name
            (target / package).mkdir(parents=True, exist_ok=True)
            (target / module).write_text(_with_owned_imports(text))
            written.add(module)
            for directory in (package, package.parent):
                (target / directory / "__init__.py").write_text("")
                written.add(directory / "__init__.py")
    return written


def committed() -> Iterator[Path]:
    """The generated modules in the repository, relative to it."""
    for wire in (SDK_WIRE, MESH_WIRE):
        for path in sorted((REPOSITORY / wire).rglob("*_pb2*")):
            if path.name.endswith(_GENERATED_SUFFIXES):
                yield path.relative_to(REPOSITORY)


def stale() -> list[str]:
    """One line for each generated file that differs from what `proto/` says now."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        for path in sorted(fresh | set(committed())):
            if path not in fresh:
                faults.append(f"{path}: no proto file generates this")
            elif not (REPOSITORY / path).exists():
                faults.append(f"{path}: missing")
            elif (REPOSITORY / path).read_bytes() != (Path(scratch) / path).read_bytes():
                faults.append(f"{path}: stale")
    return faults


def replace() -> None:
    """Puts freshly generated modules in the place of the committed ones."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        for path in committed():
            if path not in fresh:
                (REPOSITORY / path).unlink()
        for path in sorted(fresh):
            (REPOSITORY / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(scratch) / path, REPOSITORY / path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a committed file is stale")
    if not parser.parse_args().check:
        replace()
        return 0
    faults = stale()
    for fault in faults:
        print(fault)
    if faults:
        print("run `make proto` and commit what it changes")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
