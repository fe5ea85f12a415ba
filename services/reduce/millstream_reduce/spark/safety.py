"""A query is data: it may read the table `window` and compute, and nothing else.

    the query's text ─► Spark's own parser ─► operators, relations and functions, each looked up in lists

It is checked before Spark looks up any name in it, because looking up a path means reading it. Only what is known to
access nothing outside is allowed; users who need more set `unsafe: true`.

Above it: `sql`. Below it: the parser and the functions of Spark's JVM. A Spark Connect server provides neither: there
the same lists decide about the text (`query_text`), which refuses what it cannot place.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NoReturn

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from millstream import codes
from millstream.errors import UserError
from millstream.spec.sql import UNSAFE_FUNCTIONS
from millstream_reduce.spark.functions import ALLOWED_FUNCTIONS, ALLOWED_TABLE_FUNCTIONS
from millstream_reduce.spark.query_text import UnreadableError, check_query_text

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
    f"{_EXPRESSIONS}xml.XPath",
    *(f"{_EXPRESSIONS}{way}{form}" for way in ("From", "To", "SchemaOf") for form in ("Avro", "Protobuf")),
)
"""Functions that run code outside Spark, or read what their arguments or the records name."""
_OPERATORS = frozenset({
    "Aggregate", "AsOfJoin", "CTERelationDef", "CTERelationRef", "Deduplicate", "Distinct", "Except", "Expand",
    "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin", "LimitAll", "LocalLimit", "LocalRelation",
    "Offset", "OneRowRelation", "Pivot", "Project", "Range", "RebalancePartitions", "Repartition",
    "RepartitionByExpression", "ResolvedHint", "ResolvedInlineTable", "Sample", "Sort", "Subquery", "SubqueryAlias",
    "Tail", "Transpose", "Union", "UnionLoop", "UnionLoopRef", "Unpivot", "UnresolvedHint", "UnresolvedWith", "Window",
    "WithCTE", "WithWindowDefinition",
    "UnresolvedGenerator", "UnresolvedHaving", "UnresolvedInlineTable", "UnresolvedRelation",
    "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "UnresolvedTableValuedFunction", "UnresolvedTranspose",
})  # fmt: skip
"""Names of Spark's logical operators that compute over the rows they get."""
_LEAVES = (".Literal", ".UnresolvedAttribute", ".UnresolvedStar", ".UnresolvedRelation")
"""Classes without children. Asking a JVM takes time."""
_UNSAFE = (
    "Write the query without it; if the query may do everything that the runner may, set `unsafe: true` next to it"
)

_PLAN = "org.apache.spark.sql.catalyst.plans.QueryPlan"
_WITH_PLAN = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_instances: dict[tuple[str, str], bool] = {}
"""Whether Java classes, by name, are of a kind. Asking takes longer than walking."""


class UnsafeQueryError(UserError):
    """A query does more than compute over its window. The message says where and what."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.QUERY_UNSAFE, message)


def check_text(spark: SparkSession, query: str, table: str) -> None:
    """Raise `UnsafeQueryError` if a query names something other than `table` and known functions.

    Raises Spark's `ParseException` for text that is not a complete statement, such as one that closes a bracket around
    it.
    """
    if type(spark) is not SparkSession:
        try:
            check_query_text(query, table, _functions_of_users(spark))
        except UnreadableError as error:
            raise UnsafeQueryError(f"{error}{'' if str(error).endswith('?') else '.'} {_UNSAFE}") from error
        return
    java: Any = spark._jsparkSession
    state = java.sessionState()
    plan = state.sqlParser().parsePlan(query)
    short = _class_name(plan).rpartition(".")[2]
    if short not in _OPERATORS and short != "ScriptTransformation":
        raise UnsafeQueryError("it is not a query: write one SELECT")
    for node, name, known in _nodes(plan, frozenset({table.lower()})):
        _check_node(node, name, known, state.catalog())


def _functions_of_users(spark: SparkSession) -> set[str]:
    """Names of the functions that a server has beside those of Spark, in lower case."""
    return {str(row[0]).rpartition(".")[2].strip("`").lower() for row in spark.sql("SHOW USER FUNCTIONS").collect()}


def _check_node(node: Any, name: str, known: Set[str], catalog: Any) -> None:
    short = name.rpartition(".")[2]
    if "Identifier" in short and "Unresolved" in short:
        _refuse(node, "it uses IDENTIFIER to compose a name, so it is unknown what it refers to")
    if short == "UnresolvedRelation":
        parts = list(map(str, _members(node.multipartIdentifier())))
        if len(parts) != 1 or parts[0].lower() not in known:
            _refuse(
                node,
                f"it reads `{'.'.join(parts)}`: a query of a reduce reads the records of its window and nothing else",
            )
    elif short == "UnresolvedTableValuedFunction":
        function = str(_members(node.name())[-1]).lower()
        if function not in ALLOWED_TABLE_FUNCTIONS:
            _refuse(node, f"it calls `{function}`, which may read more than its window")
    elif short == "UnresolvedFunction":
        _check_function(node, [str(part).lower() for part in _members(node.nameParts())], catalog)
    elif short == "UnresolvedGenerator":
        _check_function(node, [str(node.name().funcName()).lower()], catalog)
    elif _is_instance(node, name, _PLAN):
        if short not in _OPERATORS:
            _refuse(node, f"it is, or contains, more than a SELECT ({short})")
    elif not name.startswith(_PARSED_EXPRESSIONS):
        _refuse(node, f"it does more than compute ({short})")


def _check_function(node: Any, parts: list[str], catalog: Any) -> None:
    *place, function = parts
    if place not in ([], ["builtin"], ["system", "builtin"]):
        _refuse(node, f"it calls `{'.'.join(parts)}`, which is not one of Spark's functions")
    found = catalog.lookupBuiltinOrTempFunction(function)
    # An unknown function has no class, and the analysis suggests what may have been meant.
    name = str(found.get().getClassName()) if found.isDefined() else _EXPRESSIONS
    if function in UNSAFE_FUNCTIONS or name.startswith(_REFUSED_EXPRESSIONS) or not name.startswith(_EXPRESSIONS):
        _refuse(node, f"it calls `{function}`, {UNSAFE_FUNCTIONS.get(function, 'which does more than compute')}")
    if found.isDefined() and function not in ALLOWED_FUNCTIONS:
        _refuse(
            node, f"it calls `{function}`, which this version of Millstream does not know: it may do more than compute"
        )


def _nodes(plan: Any, known: frozenset[str]) -> Iterator[tuple[Any, str, frozenset[str]]]:
    """A plan with all operators and expressions in it, including those of its subqueries, each with the name of its
    class and the tables that are known there."""
    waiting = [(plan, known)]
    while waiting:
        node, known = waiting.pop()
        name = _class_name(node)
        yield node, name, known
        if name.endswith(_LEAVES):
            continue
        inside = _members(node.children())
        if name.endswith(".UnresolvedWith"):
            # Those after a query of it, in their order, may read it; others may not.
            for relation in _members(node.cteRelations()):
                with_it = known | {str(relation.productElement(0)).lower()}
                waiting.append((relation.productElement(1), with_it if node.allowRecursion() else known))
                known = with_it
        elif _is_instance(node, name, _PLAN):
            inside += _members(node.expressions())
            inside += _members(node.innerChildren())
        elif _is_instance(node, name, _WITH_PLAN):
            inside.append(node.plan())
        waiting += [(one, known) for one in inside]


def _members(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _class_name(node: Any) -> str:
    return str(node.getClass().getName())


def _is_instance(node: Any, name: str, of: str) -> bool:
    if (name, of) not in _instances:
        _instances[name, of] = bool(is_instance_of(SparkContext._gateway, node, of))
    return _instances[name, of]


def _refuse(node: Any, what: str) -> NoReturn:
    origin = node.origin()
    line, column = origin.line(), origin.startPosition()
    where = ""
    if line.isDefined() and column.isDefined():
        where = f"line {int(line.get())}, column {int(column.get()) + 1}: "
    raise UnsafeQueryError(f"{where}{what}. {_UNSAFE}")
