"""A query is data: it may read the table `window` and compute, and nothing else.

    the query's text ─► Spark's parser ─► names and relations ─► the analysed plan ─► operators and expressions

Looked at twice. As it is parsed: what it names, before Spark looks anything up, because to look up a path is to read
it. As it is analysed: what the names have become, so that none hides behind another. Only what is known to touch
nothing outside is let through; whoever needs more says `unsafe: true`.

Above it: `sql`. Below it: plans of Spark's JVM. A Spark Connect server has no plans to look at: there the text is
looked at as `millstream validate --file-only` does, and the server's own rights are the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from millstream.errors import UserError
from millstream.spec.sql import UNSAFE_FUNCTIONS, unsafe_part

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_PARSED_EXPRESSIONS = ("org.apache.spark.sql.catalyst.analysis.", _EXPRESSIONS)
_REFUSED_EXPRESSIONS = (
    f"{_EXPRESSIONS}CallMethodViaReflection",
    f"{_EXPRESSIONS}TryReflect",
    f"{_EXPRESSIONS}PythonUDF",
    f"{_EXPRESSIONS}PythonUDAF",
    f"{_EXPRESSIONS}PythonUDTF",
    f"{_EXPRESSIONS}ScalaUDF",
    f"{_EXPRESSIONS}XmlToStructs",
    f"{_EXPRESSIONS}SchemaOfXml",
    *(f"{_EXPRESSIONS}{way}{form}" for way in ("From", "To", "SchemaOf") for form in ("Avro", "Protobuf")),
)
"""They run what is not Spark's, or read files that their arguments name."""
_OPERATORS = frozenset({
    "Aggregate", "AsOfJoin", "CTERelationDef", "CTERelationRef", "Deduplicate", "Distinct", "Except", "Expand",
    "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin", "LimitAll", "LocalLimit", "LocalRelation",
    "Offset", "OneRowRelation", "Pivot", "Project", "Range", "RebalancePartitions", "Repartition",
    "RepartitionByExpression", "ResolvedHint", "ResolvedInlineTable", "Sample", "Sort", "Subquery", "SubqueryAlias",
    "Tail", "Transpose", "Union", "UnionLoop", "UnionLoopRef", "Unpivot", "UnresolvedHint", "UnresolvedWith", "Window",
    "WithCTE", "WithWindowDefinition",
    # Only before the analysis.
    "UnresolvedGenerator", "UnresolvedHaving", "UnresolvedInlineTable", "UnresolvedRelation",
    "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "UnresolvedTableValuedFunction", "UnresolvedTranspose",
})  # fmt: skip
"""Names of Spark's logical operators that compute over the rows they get."""
_TABLE_FUNCTIONS = frozenset({
    "range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack",
    "json_tuple", "variant_explode", "variant_explode_outer",
})  # fmt: skip
_UNSAFE = "Write it without; where the query may do all that the runner may, set `unsafe: true` beside it"

_instances: dict[tuple[str, str], bool] = {}
"""Whether Java's classes, by name, are of a kind. Asking takes longer than walking."""


class UnsafeQueryError(UserError):
    """A query does more than compute over its window. The message says where and what."""


def check_text(spark: SparkSession, query: str, table: str) -> None:
    """Raise `UnsafeQueryError` where a query names something other than `table` and known functions.

    Raises Spark's `ParseException` for what is no statement by itself, as what closes a bracket around it.
    """
    if type(spark) is not SparkSession:
        if (found := unsafe_part(query)) is not None:
            raise UnsafeQueryError(f"{found}. {_UNSAFE}")
        return
    java: Any = spark._jsparkSession
    plan = java.sessionState().sqlParser().parsePlan(query)
    short = _class_name(plan).rpartition(".")[2]
    if short not in _OPERATORS and short != "ScriptTransformation":
        raise UnsafeQueryError("it is not a query: write one SELECT")
    nodes = list(_nodes(plan))
    known = {table.lower(), *(name for node in nodes for name in _names_given(node))}
    for node in nodes:
        _check_parsed(node, known)


def check_analysed(spark: SparkSession, frame: Any, view: str, line: int) -> None:
    """Raise `UnsafeQueryError` where an analysed query does something that is not known to be harmless.

    `view`: the table that it may read. `line`: of the statement, on which the user's text begins.
    """
    if type(spark) is not SparkSession:
        return
    for node in _nodes(frame._jdf.queryExecution().analyzed(), view):
        name = _class_name(node)
        short = name.rpartition(".")[2]
        if _is_plan(node):
            if short not in _OPERATORS:
                _refuse(node, f"it reads or does something outside of its window ({short})", line)
        elif name.startswith(_REFUSED_EXPRESSIONS) or not name.startswith(_EXPRESSIONS):
            _refuse(node, f"it calls `{_called(node)}`, which is more than a computation", line)


def _check_parsed(node: Any, known: set[str]) -> None:
    name = _class_name(node)
    short = name.rpartition(".")[2]
    if "Identifier" in short and "Unresolved" in short:
        _refuse(node, "it has a name put together with IDENTIFIER, so that nobody can see what it names")
    if short == "UnresolvedRelation":
        parts = [str(node.multipartIdentifier().apply(at)) for at in range(node.multipartIdentifier().size())]
        if len(parts) != 1 or parts[0].lower() not in known:
            read = ".".join(parts)
            _refuse(node, f"it reads `{read}`: a query of a reduce reads the records of its window and nothing else")
    elif short == "UnresolvedTableValuedFunction":
        function = str(node.name().apply(node.name().size() - 1)).lower()
        if function not in _TABLE_FUNCTIONS:
            _refuse(node, f"it calls `{function}`, which may read more than its window")
    elif short == "UnresolvedFunction":
        function = str(node.nameParts().apply(node.nameParts().size() - 1)).lower()
        if function in UNSAFE_FUNCTIONS:
            _refuse(node, f"it calls `{function}`, {UNSAFE_FUNCTIONS[function]}")
    elif short == "UnresolvedGenerator":
        function = str(node.name().funcName()).lower()
        if function in UNSAFE_FUNCTIONS:
            _refuse(node, f"it calls `{function}`, {UNSAFE_FUNCTIONS[function]}")
    elif _is_plan(node) and short not in _OPERATORS:
        _refuse(node, f"it is, or has in it, more than a SELECT ({short})")
    elif not _is_plan(node) and not name.startswith(_PARSED_EXPRESSIONS):
        _refuse(node, f"it does more than compute ({short})")


def _names_given(node: Any) -> Iterator[str]:
    """Names of `WITH`, which later parts may read."""
    if _class_name(node).endswith(".UnresolvedWith"):
        relations = node.cteRelations()
        for at in range(relations.size()):
            yield str(relations.apply(at).productElement(0)).lower()


def _nodes(plan: Any, view: str = "") -> Iterator[Any]:
    """A plan with all operators and expressions in it, those of its subqueries too; not what is below `view`."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if view and _class_name(node).endswith(".SubqueryAlias") and str(node.alias()).lower() == view:
            continue
        yield node
        waiting += _members(node.children())
        if _is_plan(node):
            waiting += _members(node.expressions())
            waiting += _members(node.innerChildren())
        elif _holds_plan(node):
            waiting.append(node.plan())


def _members(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _class_name(node: Any) -> str:
    return str(node.getClass().getName())


def _is_plan(node: Any) -> bool:
    return _is_instance(node, "org.apache.spark.sql.catalyst.plans.QueryPlan")


def _holds_plan(node: Any) -> bool:
    return _is_instance(node, "org.apache.spark.sql.catalyst.expressions.PlanExpression")


def _is_instance(node: Any, of: str) -> bool:
    name = _class_name(node)
    if (name, of) not in _instances:
        gateway = SparkContext._gateway
        _instances[name, of] = bool(is_instance_of(gateway, node, of))
    return _instances[name, of]


def _called(node: Any) -> str:
    return str(node.prettyName())


def _refuse(node: Any, what: str, first_line: int = 1) -> None:
    origin = node.origin()
    line, column = origin.line(), origin.startPosition()
    where = ""
    if line.isDefined() and column.isDefined():
        where = f"line {int(line.get()) - first_line + 1}, column {int(column.get()) + 1}: "
    raise UnsafeQueryError(f"{where}{what}. {_UNSAFE}")
