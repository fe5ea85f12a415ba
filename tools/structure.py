"""Counts what says how the code is built: `python tools/structure.py [CHECKOUT] [--json] [--list]`.

    statements            without docstrings, in millstream/, services/ and connectors/; generated code does not count
    statements of a map   those of the modules that a map lane imports, also in functions and for types
    circles               groups of modules that import each other, also in functions and for types
    upward imports        of a package by one that it imports itself, directly or through others
    wide classes          with more than 20 attributes that are neither settings nor statistics
    long constructors     with more than 10 parameters
    decisions             pages in docs/decisions

Nothing is imported, so any checkout can be counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))

from millstream.spec.topology import components  # noqa: E402 (found by the path)
from tools.style import nodes_below  # noqa: E402 (as above)

_PRODUCT = ("millstream", "services", "connectors")
_PACKAGES = (
    ("millstream_udf",),
    ("millstream",),
    ("millstream_reader", "millstream_writer"),
    ("millstream_connectors", "millstream_vertex"),
    ("millstream_reduce",),
    ("millstream_worker",),
    ("millstream_runner", "millstream_testing"),
)
"""From the bottom to the top, as in `pyproject.toml`."""
_MAP_LANE = tuple(f"millstream_vertex.{name}" for name in ("map_lane", "lane", "buffer_input", "mapping"))
"""What a lane of a map is made of; before there were stages, one module imported all of it."""
_ATTRIBUTES_MAX = 20
_PARAMETERS_MAX = 10
_SETTINGS_AND_STATISTICS = ("SpecModel", "Enum", "NamedTuple", "Protocol", "Choice")


@dataclass
class Module:
    """One module of the product."""

    name: str
    path: Path
    tree: ast.Module = field(repr=False)

    @cached_property
    def statements(self) -> int:
        """Without docstrings."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]
        return sum(
            not (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            )
            for node in nodes
        )


class Structure:
    """The modules of a checkout, and who imports whom."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.modules = {module.name: module for module in _modules(root)}

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """The modules that each one imports."""
        return {name: frozenset(self._imported(module)) - {name} for name, module in self.modules.items()}

    def _imported(self, module: Module) -> Iterator[str]:
        for node in nodes_below(module.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    below = f"{node.module}.{alias.name}"
                    if below in self.modules or node.module in self.modules:
                        yield below if below in self.modules else node.module

    def reached(self, starts: Iterable[str]) -> set[str]:
        """What modules import, directly or through others, and themselves."""
        seen = {start for start in starts if start in self.modules}
        waiting = list(seen)
        while waiting:
            new = self.imports[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other."""
        arcs = [(name, other) for name, others in self.imports.items() for other in others]
        return sorted(sorted(group) for group in components(list(self.modules), arcs) if len(group) > 1)

    @cached_property
    def upward(self) -> list[str]:
        """Imports of a higher package by a lower one."""
        level = {package: number for number, packages in enumerate(_PACKAGES) for package in packages}
        return sorted(
            f"{name} imports {other}"
            for name, others in self.imports.items()
            for other in others
            if level[other.partition(".")[0]] > level[name.partition(".")[0]]
        )

    @property
    def wide_classes(self) -> list[str]:
        """Classes with too many attributes."""
        return sorted(
            f"{module.name}.{node.name}: {count}"
            for module in self.modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
            and not any(ast.unparse(base).partition("[")[0].endswith(_SETTINGS_AND_STATISTICS) for base in node.bases)
            and "Statistics" not in node.name
            and (count := len(set(_attributes(node)))) > _ATTRIBUTES_MAX
        )

    @property
    def long_constructors(self) -> list[str]:
        """Constructors with too many parameters."""
        return sorted(
            f"{module.name}.{node.name}: {count}"
            for module in self.modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef) and (count := _parameters(node)) > _PARAMETERS_MAX
        )

    @property
    def decisions(self) -> list[str]:
        """Pages of decisions."""
        return sorted(path.stem for path in (self._root / "docs" / "decisions").glob("0*.md"))

    def figures(self) -> dict[str, int]:
        """All of it."""
        of_map = self.reached(_MAP_LANE)
        return {
            "modules": len(self.modules),
            "statements": sum(module.statements for module in self.modules.values()),
            "statements of a map": sum(self.modules[name].statements for name in of_map),
            "circles": len(self.circles),
            "upward imports": len(self.upward),
            "wide classes": len(self.wide_classes),
            "long constructors": len(self.long_constructors),
            "decisions": len(self.decisions),
        }


def _modules(root: Path) -> Iterator[Module]:
    for package in (package for packages in _PACKAGES for package in packages):
        places = (root / package, *sorted(root.glob(f"services/*/{package}")), root / "connectors" / package)
        for place in (place for place in places if (place / "__init__.py").exists()):
            for path in sorted(place.rglob("*.py")):
                if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                    parts = path.relative_to(place.parent).with_suffix("").parts
                    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                    yield Module(name, path, ast.parse(path.read_bytes()))


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if "ClassVar" not in ast.unparse(statement.annotation):
                yield statement.target.id
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            stored = (part for part in ast.walk(statement) if isinstance(part, ast.Attribute))
            yield from (part.attr for part in stored if isinstance(part.ctx, ast.Store) and _is_self(part.value))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _parameters(node: ast.ClassDef) -> int:
    """Of its constructor, without `self`."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            taken = statement.args
            return len(taken.posonlyargs) + len(taken.args) - 1 + len(taken.kwonlyargs)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("checkout", nargs="?", type=Path, default=REPOSITORY)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", action="store_true", help="also name what is counted")
    arguments = parser.parse_args()
    structure = Structure(arguments.checkout)
    figures = structure.figures()
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:<22} {figure:>8,}")
    if arguments.list:
        groups = [" <-> ".join(group) for group in structure.circles]
        for line in (*groups, *structure.upward, *structure.wide_classes, *structure.long_constructors):
            print(line)


if __name__ == "__main__":
    main()
