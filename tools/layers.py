"""The layers of the code in ARCHITECTURE.md, from the import rules of `pyproject.toml` and the packages' own words.

`python tools/layers.py` writes them between two marks; a test sees that they are there.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "ARCHITECTURE.md"
_PLACES = ("", "services/*/", "connectors/")
_BEGIN, _END = "<!-- layers -->\n", "<!-- end of layers -->\n"


def layers() -> Iterator[list[str]]:
    """The modules and packages of each layer, the highest first."""
    rules = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in rules["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    for layer in contract["layers"]:
        yield [name.strip() for name in re.split(r"[|:]", layer)]


def table() -> str:
    """The layers as a table in Markdown."""
    lines = ["| may import the lines below it | what it is |", "|---|---|"]
    for names in layers():
        packages = [name for name in names if (path := _path(name)).name == "__init__.py" and path.exists()]
        modules = [name for name in names if name not in packages]
        lines += (f"| `{name}` | {_summary(_path(name))} |" for name in packages)
        if modules:
            listed = " ".join(f"`{name.removeprefix('millstream.')}`" for name in modules)
            lines.append(f"| `millstream`: {listed} | modules of one idea each; they know no broker and no function |")
    return "\n".join(lines) + "\n"


def _path(name: str) -> Path:
    inner = name.replace(".", "/")
    for place in _PLACES:
        for package in REPOSITORY.glob(f"{place}{inner}/__init__.py"):
            return package
    return REPOSITORY / f"{inner}.py"


def _summary(path: Path) -> str:
    """The first sentence of a package's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    return " ".join(re.split(r"(?<=\.)\s", docstring.partition("\n\n")[0].replace("\n", " "))[0].split())


def page() -> str:
    """ARCHITECTURE.md with the layers as they are."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
