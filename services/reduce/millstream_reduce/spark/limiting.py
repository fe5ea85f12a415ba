"""LIMIT of a query over many windows: so many rows of each of them. Pure.

    SELECT key, n FROM a ORDER BY n DESC LIMIT 3
    SELECT * EXCEPT (__order_0, __row) FROM (
        SELECT *, row_number() OVER (PARTITION BY __window ORDER BY __order_0 DESC) AS __row FROM (
            SELECT key, n, __window, n AS __order_0 FROM a))
    WHERE __row <= 3 ORDER BY __window, __row

Above it: `batching`, which rewrites the query inside. Below it: `dialect`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from millstream_reduce.spark.dialect import changed
from millstream_reduce.spark.functions import GENERATORS, RANDOM
from millstream_reduce.spark.manifest import WINDOW

_ROW = "__row"


class OneByOneError(ValueError):
    """The windows have to be computed one by one; the text says why."""


@dataclass(frozen=True, slots=True)
class Top:
    """What LIMIT, OFFSET and ORDER BY said."""

    rows: int
    skipped: int
    order: list[exp.Ordered] = field(default_factory=list)


def take_limit(node: exp.Select | exp.SetOperation) -> Top | None:
    """Take LIMIT, and the ORDER BY that decides what it leaves, away from a query; None when it has none."""
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if limit is None and offset is None:
        return None
    if limit is None or not isinstance(limit, exp.Limit):
        raise OneByOneError("OFFSET without LIMIT" if limit is None else "FETCH")
    rows, skipped = _number(limit.expression), 0 if offset is None else _number(offset.expression)
    order = node.args.get("order")
    items = list(order.expressions) if order is not None else []
    if any(not isinstance(item, exp.Ordered) for item in items):
        raise OneByOneError("LIMIT with an ORDER BY of another form")
    top = Top(rows, skipped, [_resolved(item, node) for item in items])
    for part in ("limit", "offset", "order"):
        node.set(part, None)
    if isinstance(node, exp.Select) and not node.args.get("distinct"):
        # Rows are ordered by what need not be among the columns.
        for index, item in enumerate(top.order):
            node.append("expressions", exp.alias_(item.this.copy(), _order_name(index)))
    changed(node)
    return top


def limit_each_window(node: exp.Select | exp.SetOperation, top: Top) -> None:
    """Put around a rewritten query what leaves the first rows of each window only."""
    helpers = [exp.column(_ROW)]
    order = []
    for index, item in enumerate(top.order):
        by = item.copy()
        if isinstance(node, exp.Select) and not node.args.get("distinct"):
            by.set("this", exp.column(_order_name(index)))
            helpers.append(exp.column(_order_name(index)))
            changed(by)
        order.append(by)
    # Any rows will do where nothing says which.
    order = order or [exp.Ordered(this=exp.column(WINDOW))]
    number = exp.Window(
        this=exp.Anonymous(this="row_number"),
        partition_by=[exp.column(WINDOW)],
        order=exp.Order(expressions=order),
        over="OVER",
    )
    place = node.parent
    key, position = node.arg_key, node.index
    assert place is not None
    assert key is not None
    inner = exp.Subquery(this=node, alias=exp.TableAlias(this=exp.to_identifier("__all")))
    numbered = exp.Select(expressions=[exp.Star(), exp.alias_(number, _ROW)], from_=exp.From(this=inner))
    first = exp.Subquery(this=numbered, alias=exp.TableAlias(this=exp.to_identifier("__numbered")))
    kept: exp.Expr = exp.LTE(this=exp.column(_ROW), expression=exp.Literal.number(top.skipped + top.rows))
    if top.skipped:
        behind = exp.GT(this=exp.column(_ROW), expression=exp.Literal.number(top.skipped))
        kept = exp.And(this=behind, expression=kept)
    in_order = exp.Order(expressions=[exp.Ordered(this=exp.column(name)) for name in (WINDOW, _ROW)])
    outer = exp.Select(
        expressions=[exp.Star(except_=helpers)],
        from_=exp.From(this=first),
        where=exp.Where(this=kept),
        order=in_order if top.order else None,
    )
    place.set(key, outer, index=position)
    changed(outer)


def _resolved(item: exp.Ordered, node: exp.Select | exp.SetOperation) -> exp.Ordered:
    """An item of ORDER BY in terms of the query's own sources, as far as that is needed to select it."""
    item = item.copy()
    by = item.this
    plain = isinstance(node, exp.Select) and not node.args.get("distinct")
    if isinstance(by, exp.Var):
        raise OneByOneError("LIMIT with ORDER BY ALL")
    if isinstance(by, exp.Literal):
        if not plain:
            raise OneByOneError("LIMIT behind DISTINCT or a set operation, ordered by a position")
        return _replaced(item, by, _column_at(node, _number(by)))
    if not plain:
        # Only columns of the result can be meant.
        if not isinstance(by, exp.Column) or by.table:
            raise OneByOneError("LIMIT behind DISTINCT or a set operation, ordered by an expression")
        return item
    if any(call.name.lower() in RANDOM for call in item.find_all(exp.Anonymous)):
        raise OneByOneError("LIMIT of rows in a random order")
    aliases = {one.alias.lower(): one.this for one in node.expressions if isinstance(one, exp.Alias)}
    for column in list(item.find_all(exp.Column)):
        # A name that the result has means the result's column.
        named = aliases.get(column.name.lower()) if not column.table else None
        if named is not None:
            item = _replaced(item, column, named)
    return item


def _replaced(item: exp.Ordered, old: exp.Expr, new: exp.Expr) -> exp.Ordered:
    old.replace(exp.Paren(this=new.copy()))
    changed(item.this)
    changed(item)
    return item


def _column_at(node: exp.Expr, position: int) -> exp.Expr:
    columns = node.expressions
    if not 1 <= position <= len(columns) or any(_may_be_several(column) for column in columns[:position]):
        raise OneByOneError("LIMIT with an ORDER BY of a position")
    chosen: exp.Expr = columns[position - 1]
    return chosen.this if isinstance(chosen, exp.Alias) else chosen


def _may_be_several(item: exp.Expr) -> bool:
    """It may stand for several columns."""
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
        return True
    return any(call.name.lower() in GENERATORS for call in item.find_all(exp.Anonymous))


def _number(node: exp.Expr) -> int:
    if not isinstance(node, exp.Literal) or node.is_string or not node.name.isdecimal():
        raise OneByOneError("LIMIT or ORDER BY of an expression")
    return int(node.name)


def _order_name(index: int) -> str:
    return f"__order_{index}"
