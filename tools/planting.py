"""Finds code by the qualified name of its function and a piece of it, and changes that piece.

A `Change` names a function, class or constant and says what becomes of some of its code:

    old and new           the new code replaces the old code
    old                   the old code is removed
    new, before or after  the new code is inserted next to these statements
    old, before or after  the old statements are moved there

`old` is an expression, an argument `name=value`, or one or more statements in a row. It is compared as a syntax tree:
the file, layout, comments and docstrings do not matter. `...` stands for any expression, or for any number of
statements; the first one in `new` is the first one of its kind in `old`, and so on. A local variable that the function
no longer contains stands for a local variable of the function, if exactly one such reading fits.

Old code and anchor must each be found exactly once. This module reads sources and writes none.
"""

from __future__ import annotations

import ast
import builtins
import copy
import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

CANDIDATES_MAX = 5

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_IGNORED = frozenset({"ctx", "kind", "type_comment"})
_NAME_FIELDS: Mapping[type[ast.AST], str] = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
"""The field of a node that may be the name of a local variable."""
_ALWAYS_KNOWN = frozenset({*vars(builtins), "__file__", "__name__", "__doc__", "__package__", "__spec__"})


class MisfitError(ValueError):
    """The code of a change was not found, or more than once, or the new code cannot be there."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of some code. See the module."""

    place: str
    """Qualified name of a function, class or constant: `late_records`, `BufferReader.read`, `outer.inner`."""
    old: str = ""
    new: str = ""
    before: str = ""
    after: str = ""
    module: str = ""
    """Part of the dotted name of the module, for names that several modules define."""

    @property
    def anchor(self) -> str:
        """The statements next to which code is inserted, or none."""
        return self.before or self.after

    def check(self) -> None:
        """Raises `MisfitError` for a combination that has no meaning, or code that cannot be parsed."""
        if (self.before and self.after) or not (self.old or (self.new and self.anchor)):
            raise MisfitError(f"{self.place}: it needs `old`, or `new` with either `before` or `after`")
        if self.old and self.new and self.anchor:
            raise MisfitError(f"{self.place}: `old` is either replaced by `new` or moved `before` or `after` others")
        for code in filter(None, (self.old, self.new, self.before, self.after)):
            if not _statements(code):
                raise MisfitError(f"{self.place}: {_quoted(code)} is empty")


@dataclass(frozen=True)
class _Place:
    """A definition that has the name of a change."""

    path: str
    tree: ast.Module
    outermost: ast.stmt
    """The definition at the top level of the module that contains this one."""
    parent: ast.AST
    """The node whose `body`, or other list, contains the definition."""
    parent_field: str
    node: ast.stmt

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}"

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in it."""
        nodes = list(ast.walk(self.node))
        return frozenset({*_names(nodes), *(name for node in nodes for name in _bound(node))})

    @cached_property
    def local_names(self) -> frozenset[str]:
        """Local variables in it, also those of functions around it."""
        if isinstance(self.outermost, _FUNCTIONS):
            scopes: list[ast.AST] = [self.outermost]
        else:
            inner = (*_FUNCTIONS, *_COMPREHENSIONS, ast.Lambda)
            scopes = [node for node in ast.walk(self.outermost) if isinstance(node, inner)]
        return frozenset(name for scope in scopes for node in ast.walk(scope) for name in _bound(node))

    @cached_property
    def known_names(self) -> frozenset[str]:
        """Names that new code in it may use."""
        of_module = (name for node in _outside_functions(self.tree) for name in _bound(node))
        return frozenset({*self.names, *self.local_names, *of_module, *_ALWAYS_KNOWN})


@dataclass(frozen=True, slots=True)
class _Reading:
    """What names and `...` of old code stand for."""

    names: Mapping[str, str] = field(default_factory=dict)
    captured: Mapping[str, Sequence[ast.AST]] = field(default_factory=dict)

    def name(self, name: str, actual: str) -> _Reading | None:
        """With this meaning of a name, unless it or the variable has another one."""
        known = self.names.get(name)
        if known is None and actual not in self.names.values():
            return _Reading({**self.names, name: actual}, self.captured)
        return self if known == actual else None

    def capture(self, wildcard: str, nodes: Sequence[ast.AST]) -> _Reading:
        return _Reading(self.names, {**self.captured, wildcard: nodes})


@dataclass(frozen=True, slots=True)
class _Found:
    """Code that was found: nodes in a row of a list of their parent, or the only node of its field."""

    place: _Place
    parent: ast.AST
    field: str
    nodes: Sequence[ast.AST]
    reading: _Reading

    def __str__(self) -> str:
        first = self.nodes[0]
        return f"{self.place.path}:{getattr(first, 'lineno', self.place.node.lineno)}"


class Code:
    """The product's code below a directory, as it was when it was first looked at.

    A file is parsed once, and only if a change may concern it.
    """

    def __init__(self, root: Path, folders: Sequence[str]) -> None:
        self._root = root
        self._folders = folders
        self._places: dict[str, Mapping[str, list[_Place]]] = {}
        self._found_places: dict[str, list[_Place]] = {}

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """Every file, by its path below the root."""
        paths = (path for folder in self._folders for path in sorted((self._root / folder).rglob("*.py")))
        return {path.relative_to(self._root).as_posix(): path.read_text(encoding="utf-8") for path in paths}

    def paths(self, changes: Sequence[Change]) -> frozenset[str]:
        """The files that would be changed. Raises `MisfitError`."""
        found = (self._found(change) for change in changes)
        return frozenset(one.place.path for code, anchor in found for one in (code or anchor,) if one)

    def planted(self, changes: Sequence[Change]) -> dict[str, str]:
        """The changed files, as source without comments. All old code is looked up before any of it changes.

        Raises `MisfitError`.
        """
        found = [(change, *self._found(change)) for change in changes]
        _check_apart([code for _, code, _ in found if code is not None])
        edits = _Edits()
        try:
            for change, code, anchor in found:
                edits.apply(change, code, anchor)
            trees = {one.place.path: one.place.tree for _, code, anchor in found for one in (code or anchor,) if one}
            return {path: ast.unparse(tree) + "\n" for path, tree in trees.items()}
        finally:
            edits.undo()

    def _found(self, change: Change) -> tuple[_Found | None, _Found | None]:
        """The old code and the anchor of a change."""
        change.check()
        places = self._places_of(change)
        anchor = _only(places, change.anchor) if change.anchor else None
        code = _only([anchor.place] if anchor else places, change.old) if change.old else None
        return code, anchor

    def _places_of(self, change: Change) -> list[_Place]:
        if change.place not in self._found_places:
            self._found_places[change.place] = [
                place
                for path, source in self.sources.items()
                if _may_define(source, change.place)
                for place in self._parsed(path).get(change.place, ())
            ]
        found = self._found_places[change.place]
        places = [place for place in found if f".{change.module}." in f"..{_module(place.path)}.."]
        if places:
            return places
        where = f" in a module `{change.module}`" if change.module else ""
        others = ", ".join(self._others(change)) or "none"
        raise MisfitError(f"there is no `{change.place}`{where}. Others with that code or that name: {others}")

    def _others(self, change: Change) -> list[str]:
        """Where the code of a change is instead, or names that are like that of its place."""
        name, code = change.place.rpartition(".")[2], change.old or change.anchor
        words = {word for node in _statements(code) for word in _names(ast.walk(node))}
        found = [
            f"{other} ({place})"
            for path, source in self.sources.items()
            if all(word in source for word in words)
            for other, places in self._parsed(path).items()
            for place in places
            if isinstance(place.node, _FUNCTIONS) and any(_all(place, code, renamed=False))
        ]
        alike = [
            f"{other} ({places[0]})"
            for path, source in self.sources.items()
            if _may_define(source, name)
            for other, places in self._parsed(path).items()
            if other.rpartition(".")[2] == name
        ]
        return (found or alike)[:CANDIDATES_MAX]

    def _parsed(self, path: str) -> Mapping[str, list[_Place]]:
        """Definitions of a file, by qualified name."""
        if path not in self._places:
            tree = ast.parse(self.sources[path], path)
            places = self._places[path] = {}
            for name, outermost, (parent, parent_field), node in _definitions(tree):
                places.setdefault(name, []).append(_Place(path, tree, outermost, parent, parent_field, node))
        return self._places[path]


class _Edits:
    """Changes of trees that can be undone."""

    def __init__(self) -> None:
        self._before: list[tuple[ast.AST, str, object]] = []

    def undo(self) -> None:
        for parent, name, value in reversed(self._before):
            setattr(parent, name, value)

    def apply(self, change: Change, code: _Found | None, anchor: _Found | None) -> None:
        if code is not None and anchor is None:
            self._replace(code, _new(change.new, code) if change.new else [])
        elif anchor is not None:
            if code is not None:
                self._replace(code, [])
            new = list(code.nodes) if code is not None else _new(change.new, anchor)
            kept = list(anchor.nodes)
            self._replace(anchor, [*new, *kept] if change.before else [*kept, *new])

    def _replace(self, found: _Found, new: Sequence[ast.AST]) -> None:
        value = getattr(found.parent, found.field)
        if not isinstance(value, list):
            if len(new) != 1:
                raise MisfitError(f"{found.place}: `{_text(found.nodes)}` cannot be removed, only replaced")
            self._set(found.parent, found.field, new[0])
            return
        start = next((at for at, node in enumerate(value) if node is found.nodes[0]), None)
        assert start is not None, "changes are apart"
        rest = [*value[:start], *new, *value[start + len(found.nodes) :]]
        if not rest and found.field == "body":
            rest = [ast.Pass()]
        if isinstance(found.parent, ast.BoolOp) and len(rest) == 1:
            parent, name = _parent_of(found.place.tree, found.parent)
            siblings = getattr(parent, name)
            self._set(
                parent,
                name,
                [rest[0] if one is found.parent else one for one in siblings]
                if isinstance(siblings, list)
                else rest[0],
            )
            return
        self._set(found.parent, found.field, rest)

    def _set(self, parent: ast.AST, name: str, value: object) -> None:
        self._before.append((parent, name, getattr(parent, name)))
        setattr(parent, name, value)


def _check_apart(found: Sequence[_Found]) -> None:
    """Raises `MisfitError` when two changes concern the same code."""
    seen: set[int] = set()
    for one in found:
        walked = (node for top in one.nodes for node in ast.walk(top))
        inside = {id(node) for node in walked if isinstance(node, ast.expr | ast.stmt | ast.keyword)}
        if seen & inside:
            raise MisfitError(f"{one.place}: two changes concern `{_text(one.nodes)}`")
        seen |= inside


def _only(places: Sequence[_Place], code: str) -> _Found:
    """The one piece of code in one of the places. Raises `MisfitError`."""
    for renamed in (False, True):
        found = [one for place in places for one in _all(place, code, renamed)]
        if len(found) == 1:
            return found[0]
        if found:
            raise MisfitError(
                f"{_quoted(code)} is in {found[0].place} {len(found)} times, not once: "
                + ", ".join(f"{one} `{_text(one.nodes)}`" for one in found[:CANDIDATES_MAX])
            )
    lines = {
        ast.unparse(node).partition("\n")[0]: node
        for place in places
        for node in ast.walk(place.node)
        if isinstance(node, ast.stmt) and node is not place.node
    }
    close = difflib.get_close_matches(code.strip().partition("\n")[0], lines, CANDIDATES_MAX, 0.3)
    raise MisfitError(
        f"{_quoted(code)} is not in {', '.join(map(str, places))}. The most similar code there: "
        + (", ".join(f"`{line}`" for line in close) or "none")
    )


def _all(place: _Place, code: str, renamed: bool) -> Iterator[_Found]:
    """Every piece of a place that the code may mean; if `renamed`, with other names of local variables."""
    match = _Match(place, renamed)
    statements = _statements(code)
    expression = statements[0].value if len(statements) == 1 and isinstance(statements[0], ast.Expr) else None
    argument = _argument(statements)
    reading = match.node(statements[0], place.node, _Reading()) if len(statements) == 1 else None
    if reading is not None:
        yield _Found(place, place.parent, place.parent_field, [place.node], reading)
    for parent in ast.walk(place.node):
        for name, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            if nodes and isinstance(nodes[0], ast.stmt):
                yield from match.runs(statements, parent, name, nodes)
                continue
            if isinstance(parent, ast.Expr):
                continue  # The statement was found.
            for node in nodes:
                wanted = argument if isinstance(node, ast.keyword) else expression
                if wanted is None or not isinstance(node, ast.expr | ast.keyword):
                    continue
                reading = match.node(wanted, node, _Reading())
                if reading is not None:
                    yield _Found(place, parent, name, [node], reading)


class _Match:
    """Compares old code with the code of a place."""

    def __init__(self, place: _Place, renamed: bool) -> None:
        self._place = place
        self._renamed = renamed

    def runs(
        self, wanted: Sequence[ast.stmt], parent: ast.AST, name: str, nodes: Sequence[ast.stmt]
    ) -> Iterator[_Found]:
        """Every run of statements of a list that is the wanted one."""
        for start, node in enumerate(nodes):
            if _is_text(node):
                continue
            found = self._run(wanted, nodes[start:], _Reading(), to_end=False)
            if found is not None:
                length, reading = found
                yield _Found(self._place, parent, name, nodes[start : start + length], reading)

    def _run(
        self, wanted: Sequence[ast.stmt], nodes: Sequence[ast.stmt], reading: _Reading, to_end: bool
    ) -> tuple[int, _Reading] | None:
        """How many of the nodes are the wanted statements, from the first node on, and how they are read."""
        if not wanted:
            if not to_end:
                return 0, reading
            return (len(nodes), reading) if all(map(_is_text, nodes)) else None
        wildcard = _wildcard(wanted[0])
        if wildcard is None:
            start = next((at for at, node in enumerate(nodes) if not _is_text(node)), None)
            read = self.node(wanted[0], nodes[start], reading) if start is not None else None
            if start is None or read is None:
                return None
            found = self._run(wanted[1:], nodes[start + 1 :], read, to_end)
            return (start + 1 + found[0], found[1]) if found is not None else None
        for skipped in range(len(nodes) + 1):
            found = self._run(wanted[1:], nodes[skipped:], reading.capture(wildcard, nodes[:skipped]), to_end)
            if found is not None:
                return skipped + found[0], found[1]
        return None

    def node(self, wanted: ast.AST, node: ast.AST, reading: _Reading) -> _Reading | None:
        """How the wanted node is read if it is this one."""
        wildcard = _wildcard(wanted)
        if wildcard is not None and isinstance(node, ast.expr):
            return reading.capture(wildcard, [node])
        if type(wanted) is not type(node):
            return None
        for name in wanted._fields:
            if name not in _IGNORED:
                read = self._value(wanted, name, getattr(wanted, name, None), getattr(node, name, None), reading)
                if read is None:
                    return None
                reading = read
        return reading

    def _value(self, parent: ast.AST, name: str, wanted: object, value: object, reading: _Reading) -> _Reading | None:
        if isinstance(wanted, list) and isinstance(value, list):
            if any(isinstance(node, ast.stmt) for node in (*wanted, *value)):
                found = self._run([one for one in wanted if not _is_text(one)], value, reading, to_end=True)
                return found[1] if found is not None else None
            if len(wanted) != len(value):
                return None
            for one, other in zip(wanted, value, strict=True):
                read = self._value(parent, name, one, other, reading)
                if read is None:
                    return None
                reading = read
            return reading
        if isinstance(wanted, ast.AST) and isinstance(value, ast.AST):
            return self.node(wanted, value, reading)
        if isinstance(wanted, str) and isinstance(value, str) and _NAME_FIELDS.get(type(parent)) == name:
            return self._name(wanted, value, reading)
        return reading if type(wanted) is type(value) and wanted == value else None

    def _name(self, wanted: str, name: str, reading: _Reading) -> _Reading | None:
        if wanted == name:
            return reading.name(wanted, name)
        if self._renamed and wanted not in self._place.names and name in self._place.local_names:
            return reading.name(wanted, name)
        return None


def _new(code: str, found: _Found) -> list[ast.AST]:
    """New code in the place of what was found, with its names and the code that its `...` stand for."""
    statements = _statements(code)
    if isinstance(found.nodes[0], ast.stmt):
        nodes: list[ast.AST] = list(statements)
    elif isinstance(found.nodes[0], ast.keyword):
        argument = _argument(statements)
        nodes = [argument] if argument is not None else []
    else:
        nodes = [statement.value for statement in statements if isinstance(statement, ast.Expr)]
    if len(nodes) != len(statements) or (len(nodes) != 1 and not isinstance(found.nodes[0], ast.stmt)):
        raise MisfitError(f"{found.place}: {_quoted(code)} cannot replace `{_text(found.nodes)}`")
    filled = _Filled(found.reading)
    new = [other for node in nodes for other in filled.all(node)]
    walked = [other for node in new for other in ast.walk(node)]
    unknown = {*_names(walked)} - {*found.place.known_names, *(name for node in walked for name in _bound(node))}
    if unknown:
        raise MisfitError(
            f"{found.place}: {', '.join(sorted(unknown))} is unknown there, but in the new code {_quoted(code)}"
        )
    return new


class _Filled(ast.NodeTransformer):
    """Gives new code the names of the code, and what its `...` stand for."""

    def __init__(self, reading: _Reading) -> None:
        self._reading = reading

    def all(self, node: ast.AST) -> Sequence[ast.AST]:
        result = self.visit(node)
        return result if isinstance(result, list) else [result]

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        wildcard = _wildcard(node)
        if wildcard is not None:
            code = self._reading.captured.get(wildcard)
            if code is None:
                raise MisfitError("the new code has more `...` than the old code")
            return list(code)
        name = _NAME_FIELDS.get(type(node))
        if name is not None and getattr(node, name) is not None:
            node = copy.copy(node)
            setattr(node, name, self._reading.names.get(getattr(node, name), getattr(node, name)))
        result = self.generic_visit(node)
        if getattr(result, "body", None) == []:
            result.body = [ast.Pass()]  # type: ignore[attr-defined]
        return result


def _statements(code: str) -> list[ast.stmt]:
    """The statements of a piece of code, each `...` in it with its name. Raises `MisfitError`."""
    try:
        tree = ast.parse(textwrap.dedent(code))
    except SyntaxError as error:
        raise MisfitError(f"{_quoted(code)} is not Python: {error.msg}") from None
    single = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    dots = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value is ...]
    dots.sort(key=lambda node: (node.lineno, node.col_offset))
    for kind, of_kind in (
        ("statements", [node for node in dots if id(node) in single]),
        ("expression", [node for node in dots if id(node) not in single]),
    ):
        for number, node in enumerate(of_kind):
            node.kind = f"{kind} {number}"
    return [node for node in tree.body if not _is_text(node)] or tree.body


def _argument(statements: Sequence[ast.stmt]) -> ast.keyword | None:
    """The argument `name=value` that an assignment may be."""
    if len(statements) == 1 and isinstance(statements[0], ast.Assign):
        target = statements[0].targets[0]
        if len(statements[0].targets) == 1 and isinstance(target, ast.Name):
            return ast.keyword(target.id, statements[0].value)
    return None


def _wildcard(node: ast.AST) -> str | None:
    """The name of a `...`: its kind, and how many of the kind are before it."""
    value = node.value if isinstance(node, ast.Expr) else node
    return value.kind if isinstance(value, ast.Constant) and value.value is ... else None


def _is_text(node: ast.AST) -> bool:
    """A docstring, of a function or an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _definitions(
    parent: ast.AST, prefix: str = "", outermost: ast.stmt | None = None, in_function: bool = False
) -> Iterator[tuple[str, ast.stmt, tuple[ast.AST, str], ast.stmt]]:
    """Functions, classes and constants below a node: qualified name, outermost definition, parent and node."""
    for parent_field, value in ast.iter_fields(parent):
        for node in value if isinstance(value, list) else ():
            where = (parent, parent_field)
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                yield prefix + node.name, outermost or node, where, node
                inside = isinstance(node, _FUNCTIONS)
                yield from _definitions(node, f"{prefix}{node.name}.", outermost or node, inside)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and not in_function:
                for name in _bound_by(node.targets if isinstance(node, ast.Assign) else [node.target]):
                    yield prefix + name, outermost or node, where, node
            elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from _definitions(node, prefix, outermost, in_function)


def _bound_by(targets: Sequence[ast.expr]) -> Iterator[str]:
    return (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def _names(nodes: Iterator[ast.AST] | Sequence[ast.AST]) -> Iterator[str]:
    """Names that are used or assigned."""
    return (node.id for node in nodes if isinstance(node, ast.Name))


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a node binds by itself."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif type(node) in _NAME_FIELDS:
        name = getattr(node, _NAME_FIELDS[type(node)])
        if name is not None:
            yield name


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a module without those inside its functions and classes."""
    yield node
    if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _parent_of(tree: ast.AST, node: ast.AST) -> tuple[ast.AST, str]:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node or (isinstance(value, list) and any(one is node for one in value)):
                return parent, name
    raise AssertionError("a node of the tree has a parent")


def _may_define(source: str, place: str) -> bool:
    """Whether a file is worth parsing for a place."""
    *around, name = place.split(".")
    if not all(part in source for part in (*around, name)):
        return False
    return re.search(rf"\b(def|class)\s+{name}\b|\b{name}\b[\w\s,()]*[=:]", source) is not None


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _text(nodes: Sequence[ast.AST]) -> str:
    return ast.unparse(nodes[0]).partition("\n")[0]


def _quoted(code: str) -> str:
    return f"`{code.strip()}`"
