"""Says what a function is, instead of serving it: for `millstream validate --import`.

Above it: the command line and `serve`, which come here where the environment asks for it. Below it: nothing of the
function is run but the import of its module. The report is a file of JSON: what a module prints when it is imported may
go anywhere.
"""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

from millstream_udf.definition import ATTRIBUTE, CONCURRENCY_VARIABLE, KIND_NAMES, Definition, Takes, with_concurrency
from millstream_udf.failures import describe, summary
from millstream_udf.function_types import UNKNOWN
from millstream_udf.json_types import name_of

CHECK_VARIABLE = "MILLSTREAM_UDF_CHECK"
"""Environment variable with the path of the report to write."""


def asked() -> bool:
    """Whether this process is to report on its function and end."""
    return bool(os.environ.get(CHECK_VARIABLE))


def check(definition: Definition) -> NoReturn:
    """Say whether it can be served as the pipeline asks for it. Ends the process."""
    try:
        definition = with_concurrency(definition, os.environ.get(CONCURRENCY_VARIABLE))
    except TypeError as error:
        report_unusable(error)
    _write(
        {
            "function": definition.name,
            "kinds": [KIND_NAMES[kind] for kind in definition.kinds],
            "takes": _taken(definition),
            "gives": "" if definition.gives is UNKNOWN else name_of(definition.gives),
            "decorated": hasattr(definition.target, ATTRIBUTE),
            "keeps_positions": definition.keeps_positions,
        }
    )


def report_raised(error: BaseException) -> NoReturn:
    """The user's module raises when it is imported. Ends the process."""
    package = error.name if isinstance(error, ModuleNotFoundError) else None
    _write({"fault": "import", "message": summary(error), "detail": describe(error), "package": package})


def report_unusable(error: Exception, *, found: bool = True) -> NoReturn:
    """It cannot be served as it is written; or, not `found`, there is none. Ends the process."""
    _write({"fault": "function" if found else "missing", "message": str(error)})


def _write(contents: dict[str, Any]) -> NoReturn:
    # It is read when this process has ended, so it is whole then or not there.
    with open(os.environ[CHECK_VARIABLE], "w", encoding="utf-8") as file:
        json.dump(contents, file)
    # Threads that the module has started must not hold the end up.
    os._exit(0)


def _taken(definition: Definition) -> str:
    takes = definition.takes
    if definition.options.schema is not None:
        return f"columns {', '.join(definition.options.schema.names)}"
    if definition.decode is None:
        return takes.value
    name = definition.decode.name
    return f"records of {name}" if takes in (Takes.RECORD, Takes.RECORDS) else name
