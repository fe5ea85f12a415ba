"""Converts YAML text to plain values, with the place of every key and value.

Works on the node graph instead of constructed objects, because only nodes have the places of all values, including
repeated keys. It knows nothing of pipelines.
"""

import re
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from millstream import codes
from millstream.codes.code import Code
from millstream.spec.problems import Path

NODES_MAX = 100_000
"""Maximum number of values in a file, including those that aliases repeat. It stops files that expand without bound."""
DEPTH_MAX = 64
"""Maximum nesting. It stops aliases that contain themselves."""

_EXPECTED = "closed brackets and quotes, and the members of one value in the same column"
_TAG = "tag:yaml.org,2002:"
_COLLECTION_TAGS = (f"{_TAG}map", f"{_TAG}seq")
_AMBIGUOUS = re.compile(r"[+-]?0\d.*|.*_.*")
"""Whole numbers that are octal, grouped or a text, depending on the version of YAML."""
_TEXT_TAGS = (f"{_TAG}str", f"{_TAG}timestamp")


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Line and column, from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TextProblem:
    """Something wrong with the text as YAML."""

    code: Code
    place: TextPlace
    path: Path
    what: str
    expected: str


class UnreadableError(Exception):
    """The text is not one YAML document, so nothing more is known about its contents."""

    def __init__(self, problem: TextProblem) -> None:
        self.problem = problem
        super().__init__(problem.what)


@dataclass(slots=True)
class Document:
    """The contents of one YAML document."""

    value: Any = None
    """Plain dicts, lists, texts, numbers, booleans and None."""
    keys: dict[Path, TextPlace] = field(default_factory=dict)
    """Where the key (or the list entry) of each path begins."""
    values: dict[Path, TextPlace] = field(default_factory=dict)
    """Where the value of each path begins, if it is a scalar that is not empty."""
    problems: list[TextProblem] = field(default_factory=list)
    """Repeated keys, keys that are not texts, and unknown tags."""

    def place_of(self, path: Path, *, key: bool = False) -> TextPlace:
        """The place to report for a path: a scalar itself, the key of a larger value (or, with `key`, always the key);
        for a missing path, the nearest value around it."""
        if not key and path in self.values:
            return self.values[path]
        for length in range(len(path), 0, -1):
            part = path[:length]
            if part in self.keys:
                return self.keys[part]
        return TextPlace(1, 1)


def parse(text: str) -> Document:
    """The one document in a text. Errors: UnreadableError."""
    nodes = _composed(text)
    if not nodes:
        what = "the file is empty"
        raise UnreadableError(TextProblem(codes.NOT_YAML, TextPlace(1, 1), (), what, "a Pipeline in YAML"))
    if len(nodes) > 1:
        what = f"the file has {len(nodes)} YAML documents"
        expected = "one; put each pipeline into its own file"
        raise UnreadableError(TextProblem(codes.NOT_YAML, _place(nodes[1]), (), what, expected))
    document = Document()
    document.value = _Reader(document).value(nodes[0], ())
    return document


def _composed(text: str) -> list[Node]:
    yaml = YAML(typ="safe", pure=True)
    try:
        nodes = list(yaml.compose_all(StringIO(text)))
    except MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place = TextPlace(mark.line + 1, mark.column + 1) if mark is not None else TextPlace(1, 1)
        parts = (str(part) for part in (problem.problem, problem.context) if part)
        refused = TextProblem(codes.NOT_YAML, place, (), f"not YAML: {', '.join(parts)}", _EXPECTED)
        raise UnreadableError(refused) from None
    except RecursionError:
        refused = TextProblem(
            codes.FILE_TOO_LARGE, TextPlace(1, 1), (), "the values are nested too deeply", f"at most {DEPTH_MAX} levels"
        )
        raise UnreadableError(refused) from None
    except (YAMLError, ValueError) as problem:
        what = f"not YAML: {' '.join(str(problem).split()) or type(problem).__name__}"
        raise UnreadableError(TextProblem(codes.NOT_YAML, TextPlace(1, 1), (), what, _EXPECTED)) from None
    return [node for node in nodes if not _is_blank(node)]


def _is_blank(node: Node | None) -> bool:
    """Whether a document has no contents, as before a first or after a last `---`."""
    if node is None:
        return True
    return isinstance(node, ScalarNode) and node.tag == f"{_TAG}null" and not node.value


def _place(node: Node) -> TextPlace:
    return TextPlace(node.start_mark.line + 1, node.start_mark.column + 1)


class _Reader:
    """Turns nodes into values and notes their places."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def value(self, node: Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > NODES_MAX or len(path) > DEPTH_MAX:
            what = "the document expands to too many values"
            expected = f"at most {NODES_MAX} values and {DEPTH_MAX} levels"
            raise UnreadableError(TextProblem(codes.FILE_TOO_LARGE, _place(node), path, what, expected))
        if not isinstance(node, ScalarNode) and str(node.tag) not in _COLLECTION_TAGS:
            self._problem(codes.YAML_FEATURE, node, path, f"the tag `{node.tag}` is not supported", "plain YAML values")
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return self._sequence(node, path)
        if node.value:
            self._document.values[path] = _place(node)
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.extend(value_node.value if isinstance(value_node, SequenceNode) else [value_node])
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in result:
                first = self._document.keys[(*path, key)]
                what = f"`{key}` appears twice; the first is in line {first.line}"
                self._problem(codes.YAML_FEATURE, key_node, (*path, key), what, "each key only once")
                continue
            self._document.keys[(*path, key)] = _place(key_node)
            result[key] = self.value(value_node, (*path, key))
        for value_node in merged:
            self._merge(value_node, path, result)
        return result

    def _merge(self, node: Node, path: Path, result: dict[str, Any]) -> None:
        if not isinstance(node, MappingNode):
            self._problem(codes.YAML_FEATURE, node, path, "`<<` merges something that is not a mapping", "a mapping")
            return
        document = self._document
        keys, values = dict(document.keys), dict(document.values)
        for key, value in self._mapping(node, path).items():
            result.setdefault(key, value)
        document.keys.update(keys)
        document.values.update(values)

    def _sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        result = []
        for index, entry in enumerate(node.value):
            self._document.keys[(*path, index)] = _place(entry)
            result.append(self.value(entry, (*path, index)))
        return result

    def _key(self, node: Node, path: Path) -> str | None:
        if isinstance(node, ScalarNode) and node.tag in _TEXT_TAGS:
            return str(node.value)
        self._problem(
            codes.YAML_FEATURE,
            node,
            path,
            "a key is not a text",
            "a text; put quotes around it if it looks like a number",
        )
        return None

    def _scalar(self, node: Node, path: Path) -> Any:
        text = str(node.value)
        if node.tag in _TEXT_TAGS:
            return text
        if node.tag == f"{_TAG}null":
            return None
        if node.tag == f"{_TAG}int" and _AMBIGUOUS.fullmatch(text) is not None:
            self._problem(
                codes.YAML_FEATURE,
                node,
                path,
                f"YAML parsers disagree on the meaning of `{text}`",
                "digits without `_` and without a leading 0, or a quoted text",
            )
        try:
            return _plain(str(node.tag), text)
        except ValueError:
            shown = str(node.tag).replace(_TAG, "!!")
            self._problem(codes.YAML_FEATURE, node, path, f"`{shown} {text}` is not supported", "plain YAML values")
            return None

    def _problem(self, code: Code, node: Node, path: Path, what: str, expected: str) -> None:
        self._document.problems.append(TextProblem(code, _place(node), path, what, expected))


def _plain(tag: str, text: str) -> bool | int | float:
    """The value of a boolean or number. Errors: ValueError."""
    if tag == f"{_TAG}bool":
        return text.lower() in ("true", "yes", "on", "y")
    number = text.replace("_", "")
    if tag == f"{_TAG}int":
        digits = number.lstrip("+-").lower()
        base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
        return int(number, base)
    if tag == f"{_TAG}float":
        return float(number.lower().replace(".inf", "inf").replace(".nan", "nan"))
    raise ValueError(tag)
