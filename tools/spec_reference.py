"""Writes the reference of the pipeline file, docs/spec.md and docs/pipeline.schema.json.

Both are generated from the models and their docstrings. With --check nothing is written, and the exit code is 1 if a
file is not up to date.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from millstream.spec.models import NUMAFLOW_API_VERSION
from millstream.spec.options import default_of, flat, name_of, type_of
from millstream.spec.schema import schema
from tools.pages import write_or_check

ROOT = Path(__file__).resolve().parent.parent

INTRODUCTION = f"""# The pipeline file

`python tools/spec_reference.py` generates this page from the models in `millstream/spec`.

A file contains one `Pipeline`, in YAML. `millstream validate FILE` reports all problems at once: file, line, place,
description and expected value. Unknown fields are problems. Fields have the names of Numaflow's v1alpha1
if Numaflow has the concept, and `apiVersion: {NUMAFLOW_API_VERSION}` is accepted, too. Numaflow's fields that only
control how Kubernetes runs a pod are accepted with a note; those that would change results and are not
supported are problems.

- **duration**: as in Go (`100ms`, `1s`, `1h30m`), or a number of seconds.
- **size**: bytes (`1048576`), a Kubernetes quantity (`512Mi`, `64M`), or the same with a B (`1MiB`).
- **name**: a DNS label (at most 63 characters a-z, 0-9 and `-`).
- Relative paths are relative to the directory of the pipeline file.
- Nothing in the file is expanded, and `${{NAME}}` is a problem outside commands, queries and Spark's settings. A value
  that may be a secret (passwords, tokens, keys, headers, URLs of web servers, `env`, Spark's settings) can be outside
  the file: `{{env: NAME}}`, `{{file: PATH}}`, or `{{secret: {{name: NAME, key: KEY}}}}` for a key of a Kubernetes
  Secret, with an optional `prefix`: `Authorization: {{env: TOKEN, prefix: "Bearer "}}`. The process that needs the
  value looks it up when it opens the connector or program. `validate` reports missing values. No message and no stored
  file contains the value, except the settings of the Spark driver, which only their owner may read.
"""


def reference() -> str:
    """The page: a section per model, in the order of the file's references."""
    body = schema()
    sections = [INTRODUCTION]
    for name in _in_order(body):
        model = body if name == "Pipeline" else body["$defs"][name]
        sections.append("\n".join(_section(name, model)))
    return "\n".join(sections)


def _in_order(body: dict[str, Any]) -> list[str]:
    names = ["Pipeline"]
    for name in names:
        model = body if name == "Pipeline" else body["$defs"][name]
        for field in model.get("properties", {}).values():
            names += [other for other in _references(field) if other not in names]
    return names


def _references(node: Any) -> Iterator[str]:
    """Names of the models that a schema mentions, in order and once each."""
    found: dict[str, None] = {}
    open_ = [node]
    while open_:
        part = open_.pop(0)
        if isinstance(part, dict):
            if "$ref" in part:
                found[name_of(part["$ref"])] = None
            open_ = [value for key, value in part.items() if key != "discriminator"] + open_
        elif isinstance(part, list):
            open_ = part + open_
    yield from found


def _section(name: str, model: dict[str, Any]) -> Iterator[str]:
    yield f"## {name}\n"
    yield flat(model.get("description", "")) + "\n"
    fields = model.get("properties", {})
    if not fields:
        yield "It has no fields: write `{}`.\n"
        return
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for field, contents in fields.items():
        default = _default(field, contents, model)
        cells = (f"`{field}`", _type(contents), default, _meaning(contents))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _meaning(contents: dict[str, Any]) -> str:
    """A field's docstring; the schema omits it if it is that of the field's own model."""
    own = contents.get("description")
    if own is None and "$ref" in contents:
        own = schema()["$defs"][name_of(contents["$ref"])].get("description")
    return flat(own or "")


def _default(field: str, contents: dict[str, Any], model: dict[str, Any]) -> str:
    text = default_of(field, contents, model)
    return text if text in ("", "required", "its defaults") else f"`{text}`"


def _type(node: dict[str, Any]) -> str:
    return type_of(node, lambda name: f"[{name}](#{name.lower()})", "`{}`")


def contents() -> dict[Path, str]:
    """The expected contents of each file."""
    return {
        ROOT / "docs" / "spec.md": reference(),
        ROOT / "docs" / "pipeline.schema.json": json.dumps(schema(), indent=1) + "\n",
    }


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    return write_or_check(contents(), "tools/spec_reference.py", __doc__ or "", arguments)


if __name__ == "__main__":
    sys.exit(main())
