"""The text of a query, without a parser: whatever Spark's own plan shows to do more, the text refuses as well."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import ParseException

from millstream.spec.sql import UNSAFE_FUNCTIONS
from millstream_reduce.spark.functions import ALLOWED_FUNCTIONS, REFUSED_TABLE_FUNCTIONS
from millstream_reduce.spark.query_text import UnreadableError, check_query_text
from tests.security.test_queries import HARMLESS, TRICKS
from tests.support.sizes import ALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALL = "reflect('a', 'b')"
LEXING = (
    f"SELECT 'a\\'', {CALL}, 'b' FROM window",
    f"SELECT 'a''', {CALL}, '' FROM window",
    f"SELECT r'a\\', {CALL}, 'b' FROM window",
    f'SELECT R"a\\", {CALL}, "b" FROM window',
    f'SELECT "a\'", {CALL}, "\'" FROM window',
    f"SELECT `a'`, {CALL} AS `'` FROM window",
    f"SELECT `a```, {CALL} AS `b` FROM window",
    f"SELECT 1 -- '\n, {CALL} AS x -- '\nFROM window",
    f"SELECT 1 -- \\\n' \n, {CALL} AS `'` FROM window",
    f"SELECT 1 /* /* */ , {CALL} AS x /* */ */ FROM window",
    f"SELECT 1 /* /*+ */ , {CALL} AS x FROM window",
    f"SELECT /*+ X('*/ ') */ {CALL} AS `'` FROM window",
    f"SELECT /*+ X(a) */ {CALL} AS x FROM window",
    f"SELECT a://b--, {CALL} AS x\n FROM window",
    f"SELECT $$'$$, {CALL}, '$$' FROM window",
    f"SELECT $a$'$a$, {CALL}, '$a$' FROM window",
    f"SELECT bar'a\\', {CALL}, '' FROM window",
    f"SELECT\u00a01,\u2028{CALL} FROM window",
)
"""Texts that a lexer divides in the wrong places if it is not Spark's, with a call that it might overlook."""
PLACING = (
    "SELECT * FROM window where, text.`f`",
    "SELECT * FROM window limit (a), text.`f`",
    "SELECT * FROM window select (a), text.`f`",
    "SELECT * FROM window group, text.`f` GROUP BY a",
    "SELECT * FROM (text.`f` JOIN window)",
    "SELECT * FROM ((text.`f`))",
    "SELECT * FROM window JOIN LATERAL (TABLE text.`f`)",
    "FROM text.`f` SELECT *",
    "WITH w AS (SELECT 1) FROM text.`f` SELECT *",
    "SELECT * FROM window UNION TABLE text.`f`",
    "SELECT * FROM window LATERAL VIEW reflect(key) t AS a, b",
    "SELECT from_avro(key, '') AS (select, y) FROM window",
    "WITH w AS (SELECT 1), x(a) AS (SELECT * FROM text.`f`) SELECT * FROM window, x",
    "SELECT key IN (SELECT a FROM text.`f`) FROM window",
    "SELECT extract(day FROM (SELECT a FROM text.`f`)) FROM window",
    "SELECT * FROM VALUES (1) AS t(a), text.`f`",
    "SELECT * FROM window w JOIN window v USING (key), text.`f`",
    "SELECT * FROM window WHERE key = 'a' UNION ALL SELECT * FROM window, text.`f`",
    "SELECT * FROM window |> JOIN text.`f`",
    "SELECT * FROM window |> UNION ALL TABLE text.`f`",
    "SELECT a IS DISTINCT FROM b FROM text.`f`",
    "SELECT * FROM range(1), python_worker_logs()",
    "SELECT MAP key USING 'cat' AS a FROM window",
    "SELECT * FROM window WHERE reflect ('a', 'b') = ''",
    "SELECT * FROM window ORDER BY reflect/* */('a', 'b')",
)
"""Relations and calls in places where they are easily overlooked."""
READ_WELL = (
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r), s AS (SELECT n FROM r) SELECT n FROM window, s",
    "SELECT extract(DAY FROM event_time) AS d, trim(BOTH 'x' FROM key) AS k, substring(key FROM 2) AS s FROM window",
    "SELECT key, v IS NOT DISTINCT FROM 1 AS n FROM window, VALUES (1), (2) AS t(v)",
    "WITH a AS (SELECT key FROM window), b(k) AS (SELECT key FROM a) SELECT * FROM b LEFT JOIN a ON b.k = a.key",
    "SELECT CAST(key AS DECIMAL(10, 2)) AS n, x.y.z, 'it''s' AS t, `a b`, -1.5e3 AS m FROM window AS x",
    "SELECT sum(n) OVER (PARTITION BY key ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM window",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS p FROM window GROUP BY ROLLUP (key, value.a), value.b",
    "SELECT key, CASE WHEN (a OR (b)) THEN (1) ELSE (2) END AS c FROM window WHERE a IN (1, 2) AND NOT (b) LIMIT (5)",
    "SELECT * EXCEPT (value) FROM window TABLESAMPLE (5 ROWS) -- a comment\n/* another 'one' */ ORDER BY key, value.a",
    "SELECT /*+ REPARTITION(2, key) */ key FROM window UNION ALL (SELECT key FROM window EXCEPT SELECT 'a', 'b')",
    "SELECT a, b FROM window WINDOW w AS (PARTITION BY key), v AS (ORDER BY key)",
    "SELECT timestampdiff(DAY, window_start, window_end) AS d, current_date, filter(keys, k -> k <> '') FROM window",
)


@pytest.mark.parametrize("query", [*TRICKS, *LEXING, *PLACING])
def test_what_does_more_is_refused(query: str) -> None:
    with pytest.raises(UnreadableError):
        check_query_text(query, "window")


@pytest.mark.parametrize("query", [*HARMLESS, *READ_WELL])
def test_what_computes_is_not(query: str) -> None:
    check_query_text(query, "window")


def test_each_function_is_called_or_refused_by_the_same_lists() -> None:
    for name in ALLOWED_FUNCTIONS:
        if name.isidentifier() and name not in ("and", "or", "not", "in"):
            check_query_text(f"SELECT {name}(key, 1) AS x FROM window", "window")
    for name in (*UNSAFE_FUNCTIONS, "a_function_of_a_newer_spark", "myfunction"):
        with pytest.raises(UnreadableError, match=f"`{name}`"):
            check_query_text(f"SELECT {name.upper()}(key, 1) AS x FROM window", "window")
    for name in REFUSED_TABLE_FUNCTIONS:
        with pytest.raises(UnreadableError, match=f"`{name}`"):
            check_query_text(f"SELECT * FROM window, {name}()", "window")


def test_a_function_of_the_server_that_is_named_like_a_word_is_refused() -> None:
    query = "SELECT key FROM window LIMIT (5)"
    check_query_text(query, "window", {"mine"})
    with pytest.raises(UnreadableError, match="`limit`"):
        check_query_text(query, "window", {"limit"})


def test_a_name_of_with_is_known_where_spark_knows_it() -> None:
    for query in (
        "SELECT * FROM users, (WITH users AS (SELECT 1 FROM window) SELECT * FROM users) t",
        "WITH users AS (SELECT * FROM users) SELECT * FROM users",
        "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a, window",
    ):
        with pytest.raises(UnreadableError, match=r"it reads `(users|b)`"):
            check_query_text(query, "window")
    check_query_text("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT * FROM r, window", "window")


def test_the_place_is_that_of_the_query() -> None:
    with pytest.raises(UnreadableError, match=r"^line 2, column 3: it calls `reflect`"):
        check_query_text("SELECT key,\n  reflect('a', 'b') AS x FROM window", "window")


def test_whatever_the_plan_shows_the_text_shows_as_well(spark_session: SparkSession) -> None:
    """Texts are put together at random from pieces of these; what Spark can read and its plan refuses is refused."""
    from millstream_reduce.spark.safety import UnsafeQueryError, check_text

    taken = refused = 0
    overlooked = []
    for query in (*TRICKS, *LEXING, *PLACING, *HARMLESS, *READ_WELL, *_mixed(4_000 if ALL else 60)):
        try:
            check_text(spark_session, query, "window")
        except ParseException:
            continue
        except UnsafeQueryError:
            refused += 1
            try:
                check_query_text(query, "window")
            except UnreadableError:
                continue
            overlooked.append(query)
        else:
            taken += 1
    assert not overlooked
    assert taken >= len(HARMLESS) + len(READ_WELL)
    assert refused > 60


def _mixed(count: int) -> Iterator[str]:
    rng = random.Random(1)
    queries = (*TRICKS, *LEXING, *PLACING, *HARMLESS, *READ_WELL)
    pieces = [re.findall(r"\w+|\s+|.", query, re.DOTALL) for query in queries]
    for _ in range(count):
        mixed = list(rng.choice(pieces))
        for _ in range(rng.randint(1, 3)):
            of, at = rng.choice(pieces), rng.randrange(len(mixed))
            start = rng.randrange(len(of))
            match rng.randrange(3):
                case 0:
                    mixed[at : at + rng.randint(1, 3)] = []
                case 1:
                    mixed[at:at] = of[start : start + rng.randint(1, 6)]
                case 2:
                    mixed[at : at + 1] = of[start : start + rng.randint(1, 6)]
            if not mixed:
                mixed = list(of)
        yield "".join(mixed)
