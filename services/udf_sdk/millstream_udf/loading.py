"""Finds a function by the user's specification: `module:function` or `path/file.py:function`.

Above it: the command line. Below it: Python's import system. Errors are for users and say what to change.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from types import ModuleType
from typing import Any

from millstream_udf.defining import define
from millstream_udf.definition import ATTRIBUTE, Definition

_NO_PACKAGE = "attempted relative import"
"""Python's words."""


class LoadError(Exception):
    """The function cannot be found (`found` is False) or cannot be used."""

    def __init__(self, message: str, *, found: bool = True) -> None:
        super().__init__(message)
        self.found = found


def load(spec: str, directory: str = "") -> Definition:
    """The definition of the function that `spec` names. Modules and files are also searched for in `directory`, by
    default the working directory."""
    directory = os.path.abspath(directory)
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise LoadError(f"{spec!r} does not name a function: use module:function or path/file.py:function")
    module = _load_file(where, directory) if where.endswith(".py") else _load_module(where, directory)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            raise LoadError(f"{where} has no {name}{_candidates(module)}", found=False)
        target = getattr(target, part)
    try:
        return define(target, name)
    except TypeError as error:
        raise LoadError(f"{spec}: {error}") from None


def _load_file(path: str, directory: str) -> ModuleType:
    found = os.path.join(directory, path)
    if not os.path.isfile(found):
        raise LoadError(f"there is no file {path} (working directory: {directory})", found=False)
    # Modules beside it can be imported, as if it had been started as a script.
    _search(os.path.dirname(found))
    _search(directory)
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.stdlib_module_names:
        # A file may be called email.py. Under that name, it would replace Python's own for all libraries.
        name = f"{name}_function"
    module_spec = importlib.util.spec_from_file_location(name, found)
    if module_spec is None or module_spec.loader is None:
        raise LoadError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except ImportError as error:
        if _NO_PACKAGE not in str(error):
            raise
        dotted = os.path.splitext(path)[0].replace(os.sep, ".")
        raise LoadError(
            f"{path} uses a relative import ({error}), which needs a package: name the function as {dotted}:function"
        ) from None
    return module


def _load_module(name: str, directory: str) -> ModuleType:
    _search(directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # If an import inside the user's module fails, the user needs the traceback.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(
                f"there is no module {name} (working directory: {directory}); for a file use path/file.py:function",
                found=False,
            ) from None
        raise


def _search(directory: str) -> None:
    """Look for modules in the user's directory, before those that are installed, but after Python's own: a file there
    may be called types.py, and libraries import such modules at any time."""
    if directory not in sys.path:
        own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        own |= {os.path.join(place, "lib-dynload") for place in own}
        last = max((number for number, place in enumerate(sys.path) if place in own), default=-1)
        sys.path.insert(last + 1, directory)


def _candidates(module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isfunction(value) or hasattr(value, ATTRIBUTE))
    ]
    return f"; it has {', '.join(names)}" if names else "; it has no functions"
