"""Reports what a function is, instead of serving it, for `millstream validate --import`.

Above it: the command line and `serve`, which call it if the environment asks for a report. Only the function's module
is imported; the function is not run. The report is a JSON file, because a module may print anything when it is
imported.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any, NoReturn

from millstream_udf import metrics, settings
from millstream_udf.definition import ATTRIBUTE, CONCURRENCY_VARIABLE, KIND_NAMES, Definition, Takes, with_concurrency
from millstream_udf.failures import describe, summary
from millstream_udf.function_types import UNKNOWN
from millstream_udf.json_types import name_of

CHECK_VARIABLE = "MILLSTREAM_UDF_CHECK"
"""Environment variable with the path of the report to write."""


def asked() -> bool:
    """Whether this process has to report on its function and end."""
    return bool(os.environ.get(CHECK_VARIABLE))


def check(definition: Definition) -> NoReturn:
    """Report whether the function can be served as the pipeline requires. Ends the process."""
    try:
        definition = with_concurrency(definition, os.environ.get(CONCURRENCY_VARIABLE))
        misfits = settings.misfits()
    except (TypeError, settings.ConfigError) as error:
        report_unusable(error)
    _write(
        {
            "function": definition.name,
            "kinds": [KIND_NAMES[kind] for kind in definition.kinds],
            "takes": _taken(definition),
            "gives": "" if definition.gives is UNKNOWN else name_of(definition.gives),
            "decorated": hasattr(definition.target, ATTRIBUTE),
            "keeps_positions": definition.keeps_positions,
            "states": [spec.report() for spec in definition.states],
            "tables": list(definition.tables),
            "streams": definition.streams,
            "counts": _counts(definition),
            "config": [{"path": list(misfit.path), "what": settings.text_of(misfit)} for misfit in misfits],
        }
    )


def report_raised(error: BaseException) -> NoReturn:
    """Report that the import of the user's module failed. Ends the process."""
    _write(
        {
            "fault": "import",
            "message": summary(error),
            "detail": describe(error),
            "package": error.name if isinstance(error, ModuleNotFoundError) else None,
        }
    )


def report_unusable(error: Exception, *, found: bool = True) -> NoReturn:
    """Report that the function cannot be served as it is written or, if not `found`, does not exist. Ends the
    process."""
    _write({"fault": "function" if found else "missing", "message": str(error)})


def _write(contents: dict[str, Any]) -> NoReturn:
    # It is read after this process has ended, so it is complete or does not exist.
    with open(os.environ[CHECK_VARIABLE], "w", encoding="utf-8") as file:
        json.dump(contents, file)
    # Threads that the module has started must not delay the end.
    os._exit(0)


def _counts(definition: Definition) -> bool:
    """Whether the function certainly has metrics: it has made one when it was imported, or its code names some."""
    target = definition.target
    members = [one for base in target.__mro__ for one in vars(base).values()] if inspect.isclass(target) else [target]
    functions = filter(inspect.isfunction, map(inspect.unwrap, members))
    return metrics.REGISTRY.is_used or any(map(_names_metrics, functions))


def _names_metrics(function: Any) -> bool:
    scope, made = function.__globals__, (metrics.counter, metrics.gauge, metrics.histogram)
    for code in _codes(function.__code__):
        known = [scope.get(name) for name in code.co_names]
        ours = [one for one in known if isinstance(one, ModuleType) and one.__name__.startswith("millstream_udf")]
        if ("metrics" in code.co_names and ours) or any(one in made for one in known if inspect.isfunction(one)):
            return True
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _taken(definition: Definition) -> str:
    takes = definition.takes
    if definition.options.schema is not None:
        return f"columns {', '.join(definition.options.schema.names)}"
    if definition.decode is None:
        return takes.value
    name = definition.decode.name
    return f"records of {name}" if takes in (Takes.RECORD, Takes.RECORDS) else name
