"""What must be known of Spark's SQL to change a query: parsing, so that what is not changed is written again exactly as
it stood, and the functions that decide whether one query can compute many windows. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

RANDOM = frozenset({
    "input_file_name", "monotonically_increasing_id", "rand", "randn", "random", "randstr", "shuffle",
    "spark_partition_id", "uniform", "uuid",
})  # fmt: skip
"""Functions that return something different when they are called again."""

GENERATORS = frozenset({
    "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "stack", "variant_explode",
    "variant_explode_outer",
})  # fmt: skip
"""Functions of which one call may stand for several columns."""


_SPAN = "span"
_CHANGED = "changed"
_KEPT = (
    "_parse_expression", "_parse_lambda", "_parse_disjunction", "_parse_unary", "_parse_primary", "_parse_column",
    "_parse_function", "_parse_ordered", "_parse_lateral",
)  # fmt: skip
"""What these methods of the parser return remembers where it stood."""


class NotUnderstoodError(ValueError):
    """SQL that sqlglot cannot parse; Spark may."""


class _Parser(Spark.Parser):  # type: ignore[valid-type,misc]  # sqlglot's metaclass makes it
    # All functions alike, because sqlglot's knowledge of them differs from Spark's.
    FUNCTIONS: dict[str, Callable[..., Any]] = {}  # noqa: RUF012 - the base class has it as it is
    FUNCTION_PARSERS = {  # noqa: RUF012
        name: parse
        for name, parse in Spark.Parser.FUNCTION_PARSERS.items()
        if name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM")
    }
    NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012


def _keeping(name: str) -> Callable[..., Any]:
    method = getattr(Spark.Parser, name)

    def parse(self: Any, *arguments: Any, **named: Any) -> Any:
        first = self._index
        node = method(self, *arguments, **named)
        if isinstance(node, exp.Expr) and self._index > first:
            node.meta[_SPAN] = (self._tokens[first].start, self._tokens[self._index - 1].end + 1)
        return node

    return parse


for _name in _KEPT:
    setattr(_Parser, _name, _keeping(_name))


class _Generator(Spark.Generator):  # type: ignore[valid-type,misc]  # as above
    source = ""

    def sql(self, expression: Any, key: str | None = None, comment: bool = True) -> str:
        if key is None and isinstance(expression, exp.Expr) and not expression.meta.get(_CHANGED):
            span = expression.meta.get(_SPAN)
            if span is not None:
                # The generator omits the space before this one, so it begins with one.
                space = " " if isinstance(expression, exp.Lateral) else ""
                return space + self.source[span[0] : span[1]]
        return str(super().sql(expression, key, comment))


class _Dialect(Spark):
    Parser = _Parser
    Generator = _Generator


def parse(text: str) -> exp.Expr:
    """The one statement of `text`. Raises `NotUnderstoodError`."""
    try:
        statements = _Dialect().parse(text, error_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError) as error:
        raise NotUnderstoodError(str(error).partition("\n")[0]) from error
    if len(statements) != 1 or statements[0] is None or isinstance(statements[0], exp.Command):
        raise NotUnderstoodError("it is not one query")
    return statements[0]


def write(tree: exp.Expr, source: str) -> str:
    """The text of a tree that was parsed from `source`. Raises `NotUnderstoodError`."""
    generator = _Generator(
        dialect=_Dialect(), comments=False, normalize_functions=False, unsupported_level=ErrorLevel.RAISE
    )
    generator.source = source
    try:
        return str(generator.generate(tree))
    except (SqlglotError, RecursionError, ValueError) as error:
        raise NotUnderstoodError(str(error).partition("\n")[0]) from error


def changed(node: exp.Expr) -> None:
    """`node` has been changed: it and everything that contains it are written again."""
    above: exp.Expr | None = node
    while above is not None and not above.meta.get(_CHANGED):
        above.meta[_CHANGED] = True
        above = above.parent
