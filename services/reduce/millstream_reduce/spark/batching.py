"""Rewrites a query over one window into one over many, with the window's index as one more column. Pure.

    SELECT key, count(*) AS n FROM window GROUP BY key
    SELECT key, count(*) AS n, window.__window AS __window FROM rows AS window GROUP BY key, window.__window

Above it: `sql`. Below it: `dialect`. Every scope passes the index on as its last column, and nothing in a scope
combines rows of two windows: grouping, DISTINCT, window functions, joins and set operations each have the index in what
they compare. A query that cannot be rewritten so that every window has exactly the result that it has alone raises
`OneByOneError`, with the reason.

LIMIT is so many rows of each window:

    SELECT key, n FROM a ORDER BY n DESC LIMIT 3
    SELECT * EXCEPT (__order_0, __row) FROM (
        SELECT *, row_number() OVER (PARTITION BY __window ORDER BY __order_0 DESC) AS __row FROM (
            SELECT key, n, __window, n AS __order_0 FROM a))
    WHERE __row <= 3 ORDER BY __window, __row

An aggregate without GROUP BY gives a row also where nothing is left to aggregate. Cases:
 1. Its rows cannot be none (every window has a row): it is grouped by the index.
 2. Only a WHERE may leave none: that becomes the FILTER of every aggregate instead.
 3. Otherwise it is not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millstream_reduce.spark.dialect import GENERATORS, RANDOM, NotUnderstoodError, changed, parse, write
from millstream_reduce.spark.functions import AGGREGATES
from millstream_reduce.spark.manifest import WINDOW

_ROW = "__row"


class OneByOneError(ValueError):
    """The windows have to be computed one by one; the text says why."""


@dataclass(frozen=True, slots=True)
class Top:
    """What LIMIT, OFFSET and ORDER BY say."""

    rows: int
    skipped: int
    order: list[exp.Ordered] = field(default_factory=list)


def take_limit(node: exp.Select | exp.SetOperation) -> Top | None:
    """Remove LIMIT, and the ORDER BY that decides its rows, from a query; None if it has no LIMIT."""
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
        # Rows may be ordered by something that is not among the columns.
        for index, item in enumerate(top.order):
            node.append("expressions", exp.alias_(item.this.copy(), _order_name(index)))
    changed(node)
    return top


def limit_each_window(node: exp.Select | exp.SetOperation, top: Top) -> None:
    """Wrap a rewritten query so that only the first rows of each window are left."""
    helpers = [exp.column(_ROW)]
    order = []
    for index, item in enumerate(top.order):
        by = item.copy()
        if isinstance(node, exp.Select) and not node.args.get("distinct"):
            by.set("this", exp.column(_order_name(index)))
            helpers.append(exp.column(_order_name(index)))
            changed(by)
        order.append(by)
    # Without an order, any rows will do.
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
        kept = exp.And(this=exp.GT(this=exp.column(_ROW), expression=exp.Literal.number(top.skipped)), expression=kept)
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
    """An item of ORDER BY in terms of the query's own sources, as far as needed to select it."""
    item = item.copy()
    by = item.this
    plain = isinstance(node, exp.Select) and not node.args.get("distinct")
    if isinstance(by, exp.Var):
        raise OneByOneError("LIMIT with ORDER BY ALL")
    if isinstance(by, exp.Literal):
        if not plain:
            raise OneByOneError("LIMIT after DISTINCT or a set operation, ordered by a position")
        return _replaced(item, by, _column_at(node, _number(by)))
    if not plain:
        # Only columns of the result can be meant.
        if not isinstance(by, exp.Column) or by.table:
            raise OneByOneError("LIMIT after DISTINCT or a set operation, ordered by an expression")
        return item
    if any(call.name.lower() in RANDOM for call in item.find_all(exp.Anonymous)):
        raise OneByOneError("LIMIT of rows in a random order")
    aliases = {one.alias.lower(): one.this for one in node.expressions if isinstance(one, exp.Alias)}
    for column in list(item.find_all(exp.Column)):
        # A name in the result means the result's column.
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
    """Whether it may stand for several columns."""
    if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
        return True
    return any(call.name.lower() in GENERATORS for call in item.find_all(exp.Anonymous))


def _number(node: exp.Expr) -> int:
    if not isinstance(node, exp.Literal) or node.is_string or not node.name.isdecimal():
        raise OneByOneError("LIMIT or ORDER BY of an expression")
    return int(node.name)


def _order_name(index: int) -> str:
    return f"__order_{index}"


TABLE = "window"
"""Name of the table whose rows are those of one window."""

_SELECT_PARTS = frozenset({
    "kind", "hint", "distinct", "expressions", "from_", "joins", "laterals", "where", "group", "having", "windows",
    "order", "with_", "operation_modifiers",
})  # fmt: skip
_SET_PARTS = frozenset({"this", "expression", "distinct", "by_name", "with_", "order"})
_NAMES_OF_PARTS = {
    "fetch": "FETCH",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "sort": "SORT BY",
    "pivots": "PIVOT",
    "sample": "TABLESAMPLE",
    "qualify": "QUALIFY",
}


@dataclass(frozen=True, slots=True)
class Relation:
    """What is known about a query or table."""

    carries: bool
    """It has the window's index as its last column. Otherwise it is the same for every window."""
    never_empty: bool
    """It has a row for every window."""


@dataclass(slots=True)
class FromSource:
    """Something in a FROM clause."""

    name: str
    relation: Relation
    hidden: bool = False
    """Its columns are not among those of `*`."""

    def index(self) -> exp.Column:
        return exp.column(exp.to_identifier(WINDOW), table=exp.to_identifier(self.name, quoted=True))


def batched(query: str, table: str) -> str:
    """The query over many windows, whose rows are in `table`. Raises `OneByOneError`."""
    try:
        # A node that is wrapped needs a parent.
        root = exp.Subquery(this=parse(query))
        if not _Rewriting(table).query(root.this, {}).carries:
            raise OneByOneError(f"the query does not read the table `{TABLE}`")
        return write(root.this, query)
    except NotUnderstoodError as error:
        raise OneByOneError(f"the query cannot be parsed: {error}") from error


class _Rewriting:
    def __init__(self, table: str) -> None:
        self._table = table
        self._names = 0

    def query(self, node: exp.Expr, known: Mapping[str, Relation]) -> Relation:
        """Rewrite a query in place. `known`: the common table expressions that are visible here."""
        if isinstance(node, (exp.Select, exp.SetOperation)):
            known = self._with(node, known)
            top = take_limit(node)
            if isinstance(node, exp.Select):
                relation = _Scope(self, node, known).rewrite()
            else:
                relation = self._set_operation(node, known)
            if top is None:
                return relation
            if not relation.carries:
                raise OneByOneError("LIMIT of rows that do not belong to the window")
            limit_each_window(node, top)
            return Relation(carries=True, never_empty=relation.never_empty and top.rows > 0 and not top.skipped)
        if isinstance(node, exp.Subquery):
            _allow(node, frozenset({"this", "alias"}), "a query in parentheses")
            return self.query(node.this, known)
        if isinstance(node, (exp.Values, exp.Table)):
            if _reads(node, known):
                raise OneByOneError("TABLE window; write SELECT * FROM window")
            return Relation(carries=False, never_empty=False)
        raise OneByOneError(f"{type(node).__name__.upper()} is not a SELECT")

    def table(self, node: exp.Table, known: Mapping[str, Relation]) -> Relation:
        """Rewrite a name in a FROM clause in place."""
        if not isinstance(node.this, exp.Identifier) or node.args.get("db") is not None:
            if any(_reads(part, known) for part in node.iter_expressions() if not isinstance(part, exp.Identifier)):
                raise OneByOneError("a table function that reads the window")
            return Relation(carries=False, never_empty=False)
        name = node.name.lower()
        if name in known:
            return known[name]
        if name != TABLE:
            return Relation(carries=False, never_empty=False)
        node.set("this", exp.to_identifier(self._table, quoted=True))
        changed(node)
        return Relation(carries=True, never_empty=True)

    def new_name(self) -> str:
        self._names += 1
        return f"__source_{self._names}"

    def _with(self, node: exp.Expr, known: Mapping[str, Relation]) -> Mapping[str, Relation]:
        clause = node.args.get("with_")
        if clause is None:
            return known
        if clause.args.get("recursive"):
            raise OneByOneError("WITH RECURSIVE")
        seen = dict(known)
        for expression in clause.expressions:
            relation = self.query(expression.this, seen)
            if relation.carries:
                name_index(expression.args["alias"])
            seen[expression.alias.lower()] = relation
        return seen

    def _set_operation(self, node: exp.SetOperation, known: Mapping[str, Relation]) -> Relation:
        _allow(node, _SET_PARTS, node.key.upper())
        sides = [self.query(side, known) for side in (node.this, node.expression)]
        if sides[0].carries != sides[1].carries:
            raise OneByOneError(f"{node.key.upper()} with rows that do not belong to the window")
        if sides[0].carries:
            order_by_index(node)
        some = isinstance(node, exp.Union) and any(side.never_empty for side in sides)
        return Relation(sides[0].carries, some)


class _Scope:
    """One SELECT."""

    def __init__(self, rewriting: _Rewriting, select: exp.Select, known: Mapping[str, Relation]) -> None:
        self._rewriting = rewriting
        self._select = select
        self._known = known
        self._sources: list[FromSource] = []
        self._index: exp.Expr | None = None
        """The window's index as this scope sees it; None until a source has it."""
        self._merged = False
        """Whether columns of two sources are merged: NATURAL or USING."""

    def rewrite(self) -> Relation:
        select = self._select
        _allow(select, _SELECT_PARTS, "SELECT")
        if select.args.get("kind"):
            raise OneByOneError("SELECT TRANSFORM or AS STRUCT")
        clause = select.args.get("from_")
        if clause is not None:
            source = self._source(clause.this)
            self._sources.append(source)
            if source.relation.carries:
                self._index = source.index()
        for join in select.args.get("joins") or ():
            self._join(join)
        self._check_subqueries()
        if self._index is None:
            return Relation(carries=False, never_empty=False)
        for lateral in select.args.get("laterals") or ():
            alias = lateral.args.get("alias")
            if alias is None or alias.this is None:
                raise OneByOneError("LATERAL VIEW without a name")
            self._sources.append(FromSource(alias.name, Relation(carries=False, never_empty=False)))
        never_empty = self._never_empty()
        self._partition_window_functions(self._index)
        grouped = self._group(self._index, never_empty=never_empty)
        self._project(self._index)
        order_by_index(select)
        filtered = select.args.get("where") is not None or select.args.get("having") is not None
        return Relation(carries=True, never_empty=not filtered and (never_empty or grouped))

    def _source(self, node: exp.Expr) -> FromSource:
        relation = Relation(carries=False, never_empty=False)
        name = node.name if isinstance(node, exp.Table) else ""
        if isinstance(node, exp.Table):
            _allow(node, frozenset({"this", "db", "catalog", "alias"}), "a table")
            relation = self._rewriting.table(node, self._known)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            relation = self._rewriting.query(node, self._known)
        elif _reads(node, self._known):
            raise OneByOneError(f"{type(node).__name__.upper()} in FROM")
        if relation.carries:
            if node.args.get("alias") is None:
                own = exp.to_identifier(name or self._rewriting.new_name(), quoted=bool(name))
                node.set("alias", exp.TableAlias(this=own))
            name_index(node.args["alias"])
            changed(node)
        return FromSource(node.alias_or_name, relation)

    def _join(self, join: exp.Join) -> None:
        _allow(join, frozenset({"this", "on", "using", "side", "kind", "method"}), "JOIN")
        side, kind, method = join.side.upper(), join.kind.upper(), join.method.upper()
        if isinstance(join.this, exp.Lateral):
            raise OneByOneError("JOIN LATERAL")
        carrying = sum(source.relation.carries for source in self._sources)
        source = self._source(join.this)
        source.hidden = kind in ("SEMI", "ANTI")
        self._sources.append(source)
        if method not in ("", "NATURAL"):
            raise OneByOneError(f"{method} JOIN")
        merges = method == "NATURAL" or bool(join.args.get("using"))
        self._merged = self._merged or merges
        if not source.relation.carries:
            if self._index is not None and side in ("RIGHT", "FULL"):
                raise OneByOneError(f"{side} JOIN with rows that do not belong to the window")
            return
        right = source.index()
        if self._index is None:
            if side in ("LEFT", "FULL") or source.hidden:
                raise OneByOneError("rows that do not belong to the window JOIN rows that do")
            self._index = right
            return
        if merges:
            if carrying > 1 or not self._sources[0].relation.carries:
                raise OneByOneError("NATURAL JOIN or USING after another join")
            if method != "NATURAL":
                join.append("using", exp.to_identifier(WINDOW))
        else:
            same = exp.EQ(this=self._index.copy(), expression=right.copy())
            condition = join.args.get("on")
            join.set("on", same if condition is None else exp.And(this=exp.Paren(this=condition), expression=same))
            if kind == "CROSS" or not (kind or side):
                join.set("kind", "INNER")
        changed(join)
        if side == "RIGHT":
            self._index = right
        elif side == "FULL":
            self._index = exp.Coalesce(this=self._index.copy(), expressions=[right])

    def _check_subqueries(self) -> None:
        """Queries inside expressions must be the same for every window."""
        clauses = [
            *self._select.expressions,
            *(self._select.args.get(part) for part in ("where", "group", "having", "order")),
            *(join.args.get("on") for join in self._select.args.get("joins") or ()),
            *(self._select.args.get("laterals") or ()),
        ]
        for clause in clauses:
            if clause is not None and any(_reads(query, self._known) for query in clause.find_all(exp.Query)):
                raise OneByOneError("a query inside an expression")

    def _never_empty(self) -> bool:
        """Before WHERE."""
        if self._select.args.get("joins"):
            return False
        outer = all(lateral.args.get("outer") for lateral in self._select.args.get("laterals") or ())
        return outer and self._sources[0].relation.never_empty

    def _partition_window_functions(self, index: exp.Expr) -> None:
        for node in [node for node in self._select.find_all(exp.Window) if self._is_own(node)]:
            named = node.args.get("alias") is not None and not isinstance(node.this, exp.Identifier)
            if named and not (node.args.get("partition_by") or node.args.get("order") or node.args.get("spec")):
                continue
            if named:
                raise OneByOneError("a window that adds to a named one")
            node.append("partition_by", index.copy())
            changed(node)

    def _group(self, index: exp.Expr, *, never_empty: bool) -> bool:
        """Whether there is at least one group, whatever the rows are."""
        select = self._select
        group = select.args.get("group")
        if group is not None:
            extra = {name for name, value in group.args.items() if value} - {"expressions", "all"}
            if extra or any(isinstance(item, (exp.Cube, exp.Rollup, exp.GroupingSets)) for item in group.expressions):
                raise OneByOneError("GROUP BY with grouping sets")
            if any(isinstance(item, exp.Tuple) and not item.expressions for item in group.expressions):
                raise OneByOneError("GROUP BY ()")
            if group.args.get("all"):
                if not any(self._is_key(item) for item in select.expressions):
                    raise OneByOneError("GROUP BY ALL with nothing to group by")
            else:
                group.append("expressions", index.copy())
                changed(group)
            return False
        aggregates = list(self._aggregates())
        if not aggregates and select.args.get("having") is None:
            return False
        where = select.args.get("where")
        if not never_empty:
            raise OneByOneError("an aggregate without GROUP BY over possibly no rows")
        if where is not None:
            self._filter(aggregates, where)
        select.set("group", exp.Group(expressions=[index.copy()]))
        changed(select)
        return True

    def _filter(self, aggregates: Sequence[exp.Expr], where: exp.Where) -> None:
        """Case 2."""
        condition = where.this
        if any(call.name.lower() in RANDOM for call in condition.find_all(exp.Anonymous)):
            raise OneByOneError("an aggregate without GROUP BY over randomly chosen rows")
        for aggregate in aggregates:
            whole = aggregate
            while isinstance(whole.parent, (exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)):
                whole = whole.parent
            existing = whole.parent
            if isinstance(existing, exp.Filter):
                inner = existing.expression
                inner.set("this", exp.And(this=exp.Paren(this=inner.this), expression=exp.Paren(this=condition.copy())))
                changed(inner)
            else:
                filtered = exp.Filter(this=whole.copy(), expression=exp.Where(this=condition.copy()))
                whole.replace(filtered)
                changed(filtered)
        self._select.set("where", None)

    def _project(self, index: exp.Expr) -> None:
        select = self._select
        projections: list[exp.Expr] = []
        for item in select.expressions:
            if isinstance(item, exp.Star):
                projections += self._star(item)
                continue
            if not isinstance(item, exp.Column) or not isinstance(item.this, exp.Star):
                self._check_stars(item)
            elif any(source.name.lower() == item.table.lower() for source in self._sources if source.relation.carries):
                _leave_out_index(item.this)
            projections.append(item)
        projections.append(exp.alias_(index.copy(), WINDOW))
        select.set("expressions", projections)
        changed(select)

    def _star(self, star: exp.Star) -> list[exp.Expr]:
        if self._merged:
            raise OneByOneError("** after NATURAL JOIN or USING")
        shown = [source for source in self._sources if not source.hidden]
        if sum(source.relation.carries for source in shown) == 1:
            _leave_out_index(star)
            return [star]
        if any(star.args.get(part) for part in ("except_", "replace", "rename")):
            raise OneByOneError("* EXCEPT over several tables")
        stars: list[exp.Expr] = []
        for source in shown:
            if not source.name:
                raise OneByOneError("* over a table without a name")
            one = exp.Column(this=exp.Star(), table=exp.to_identifier(source.name, quoted=True))
            if source.relation.carries:
                _leave_out_index(one.this)
            stars.append(one)
        return stars

    def _check_stars(self, item: exp.Expr) -> None:
        for star in item.find_all(exp.Star):
            parent = star.parent
            if not (isinstance(parent, exp.Anonymous) and parent.name.lower() == "count") and self._is_own(star):
                raise OneByOneError("* inside a function")

    def _aggregates(self) -> Iterator[exp.Expr]:
        """Calls of aggregates that are not window functions."""
        for part in (*self._select.expressions, self._select.args.get("having"), self._select.args.get("order")):
            if part is None:
                continue
            for node in part.find_all(exp.Anonymous, exp.Any, exp.All):
                if not self._is_own(node):
                    continue
                if not isinstance(node, exp.Anonymous):
                    raise OneByOneError("ANY or ALL without GROUP BY")
                if node.name.lower() in AGGREGATES and not _is_windowed(node):
                    yield node

    def _is_key(self, item: exp.Expr) -> bool:
        """Whether GROUP BY ALL includes it, as far as the query shows."""
        calls = (node for node in item.find_all(exp.Anonymous, exp.Window) if self._is_own(node))
        return not any(isinstance(node, exp.Window) or node.name.lower() in AGGREGATES for node in calls)

    def _is_own(self, node: exp.Expr) -> bool:
        """Whether it belongs to this SELECT, and not to one inside it."""
        return node.find_ancestor(exp.Select, exp.SetOperation) is self._select


def _is_windowed(node: exp.Expr) -> bool:
    above = node.parent
    while isinstance(above, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)):
        node = above
        above = node.parent
    return isinstance(above, exp.Window) and above.this is node


def _leave_out_index(star: exp.Star) -> None:
    star.append("except_", exp.column(WINDOW))
    changed(star)


def name_index(alias: exp.TableAlias) -> None:
    """An alias that names columns also names the index."""
    if alias.args.get("columns"):
        alias.append("columns", exp.to_identifier(WINDOW))
        changed(alias)


def order_by_index(node: exp.Expr) -> None:
    """Ordered rows are ordered window by window."""
    order = node.args.get("order")
    if order is not None:
        order.set("expressions", [exp.Ordered(this=exp.column(WINDOW)), *order.expressions])
        changed(order)


def _allow(node: exp.Expr, parts: frozenset[str], what: str) -> None:
    for name, value in node.args.items():
        if value and name not in parts:
            raise OneByOneError(_NAMES_OF_PARTS.get(name) or f"{what} with {name.strip('_').upper()}")


def _reads(node: exp.Expr, known: Mapping[str, Relation]) -> bool:
    """Whether anything in it may differ between windows."""
    names = {table.name.lower() for table in node.find_all(exp.Table)}
    return TABLE in names or any(name in names for name, relation in known.items() if relation.carries)
