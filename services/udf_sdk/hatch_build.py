"""Builds `millstream_udf/_columns.c` if there is a C compiler; without one, the package does the same in Python.

    MILLSTREAM_COMPILED=no       never
    MILLSTREAM_COMPILED=yes      a build without it fails, with the reason

The module is built for the stable ABI, so one wheel serves every CPython from 3.11 on. In an editable install, it is
beside its source.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

VARIABLE = "MILLSTREAM_COMPILED"
SOURCE = "millstream_udf/_columns.c"
MADE = "millstream_udf/_columns.abi3.so"
PYTHON = "cp311"
"""The first version whose stable ABI it uses, as in the source."""


class CompileColumns(BuildHookInterface[Any]):
    """Adds the module to wheels and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        beside = Path(self.root) / MADE
        wanted = os.environ.get(VARIABLE, "")
        self._directory = tempfile.TemporaryDirectory(prefix="millstream-udf-")
        made = Path(self._directory.name) / beside.name
        problem = f"{VARIABLE}=no" if wanted == "no" else _unable() or _compile(Path(self.root) / SOURCE, made)
        if problem and wanted == "yes":
            raise RuntimeError(f"{VARIABLE}=yes, and {SOURCE} cannot be compiled: {problem}")
        if version == "editable":
            _put(made, beside)
        if problem:
            self.app.display_info(f"{SOURCE} is not compiled: {problem}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"{PYTHON}-abi3-{next(iter(platform_tags()))}"
        if version != "editable":
            build_data["force_include"][str(made)] = MADE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.target_name == "wheel":
            self._directory.cleanup()


def _unable() -> str:
    """Why this Python cannot load the compiled module; empty if it can."""
    if sys.implementation.name != "cpython":
        return f"it is for CPython, not {platform.python_implementation()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded Python has no stable ABI"
    return ""


def _compile(source: Path, made: Path) -> str:
    """The error; empty if there is none."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    include = sysconfig.get_path("include")
    command = [*compiler, "-O3", "-fPIC", *shared, f"-I{include}", str(source), "-o", str(made)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{compiler[0]}: {error}"
    return f"{shlex.join(command)}\n{ended.stderr}" if ended.returncode else ""


def _put(made: Path, place: Path) -> None:
    """Replaces an existing module: processes that have loaded it keep it."""
    if not made.exists():
        place.unlink(missing_ok=True)
        return
    new = place.with_suffix(f".{os.getpid()}")
    shutil.copy(made, new)
    new.replace(place)
