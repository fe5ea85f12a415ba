"""Queries rewritten for many windows: what becomes of them, and which are left alone. No Spark."""

from __future__ import annotations

import pytest

from millstream_reduce.spark.batching import OneByOneError, batched

W = "`window`.__window"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param(
            "SELECT key, count(*) AS n FROM window GROUP BY key",
            f"SELECT key, count(*) AS n, {W} AS __window FROM `rows` AS `window` GROUP BY key, {W}",
            id="grouped",
        ),
        pytest.param(
            "select KEY, TIME'9:00' t, 2L << 1 from window -- the end",
            f"SELECT KEY, TIME'9:00' t, 2L << 1, {W} AS __window FROM `rows` AS `window`",
            id="what is not changed stays as it stood",
        ),
        pytest.param(
            "SELECT count(*) FROM window",
            f"SELECT count(*), {W} AS __window FROM `rows` AS `window` GROUP BY {W}",
            id="one group",
        ),
        pytest.param(
            "SELECT count(*), sum(a) FILTER (WHERE b) FROM window WHERE c > 1",
            "SELECT count(*) FILTER(WHERE c > 1), sum(a) FILTER(WHERE (b) AND (c > 1)), "
            f"{W} AS __window FROM `rows` AS `window` GROUP BY {W}",
            id="one group, maybe of no rows",
        ),
        pytest.param(
            "SELECT first(a) IGNORE NULLS, percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM window WHERE b",
            "SELECT first(a) IGNORE NULLS FILTER(WHERE b), "
            "percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FILTER(WHERE b), "
            f"{W} AS __window FROM `rows` AS `window` GROUP BY {W}",
            id="aggregates with more behind them",
        ),
        pytest.param(
            "SELECT DISTINCT key FROM window AS w WHERE key > 'a'",
            "SELECT DISTINCT key, `w`.__window AS __window FROM `rows` AS w WHERE key > 'a'",
            id="distinct",
        ),
        pytest.param(
            "SELECT * FROM window",
            f"SELECT * EXCEPT (__window), {W} AS __window FROM `rows` AS `window`",
            id="star",
        ),
        pytest.param(
            "SELECT a.*, b.key FROM window a JOIN window b ON a.x = b.x OR a.y = b.y",
            "SELECT a.* EXCEPT (__window), b.key, `a`.__window AS __window FROM `rows` AS a INNER JOIN `rows` AS b "
            "ON (a.x = b.x OR a.y = b.y) AND `a`.__window = `b`.__window",
            id="join",
        ),
        pytest.param(
            "SELECT * FROM window a, window b",
            "SELECT `a`.* EXCEPT (__window), `b`.* EXCEPT (__window), `a`.__window AS __window FROM `rows` AS a "
            "INNER JOIN `rows` AS b ON `a`.__window = `b`.__window",
            id="comma",
        ),
        pytest.param(
            "SELECT a.x FROM window a FULL JOIN window b ON a.x = b.x RIGHT JOIN window c ON b.x = c.x",
            "SELECT a.x, `c`.__window AS __window FROM `rows` AS a FULL JOIN `rows` AS b ON (a.x = b.x) AND "
            "`a`.__window = `b`.__window RIGHT JOIN `rows` AS c ON (b.x = c.x) AND "
            "COALESCE(`a`.__window, `b`.__window) = `c`.__window",
            id="outer joins",
        ),
        pytest.param(
            "SELECT sum(a) OVER (PARTITION BY b ORDER BY c ROWS 3 PRECEDING), rank() OVER w FROM window "
            "WINDOW w AS (ORDER BY c)",
            f"SELECT sum(a) OVER (PARTITION BY b, {W} ORDER BY c ROWS BETWEEN 3 PRECEDING AND CURRENT ROW), "
            f"rank() OVER w, {W} AS __window FROM `rows` AS `window` WINDOW w AS (PARTITION BY {W} ORDER BY c)",
            id="window functions",
        ),
        pytest.param(
            "WITH a(k) AS (SELECT key FROM window) SELECT k FROM a UNION SELECT key FROM window ORDER BY k",
            f"WITH a(k, __window) AS (SELECT key, {W} AS __window FROM `rows` AS `window`) "
            "SELECT k, `a`.__window AS __window FROM a AS `a` UNION "
            f"SELECT key, {W} AS __window FROM `rows` AS `window` ORDER BY __window NULLS LAST, k",
            id="common table expressions and unions",
        ),
        pytest.param(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM window GROUP BY key)",
            "SELECT max(n), `__source_1`.__window AS __window FROM "
            f"(SELECT count(*) AS n, {W} AS __window FROM `rows` AS `window` GROUP BY key, {W}) AS __source_1 "
            "GROUP BY `__source_1`.__window",
            id="an aggregate of aggregates",
        ),
        pytest.param(
            "SELECT k FROM window LATERAL VIEW OUTER explode(keys) t AS k",
            f"SELECT k, {W} AS __window FROM `rows` AS `window` LATERAL VIEW OUTER explode(keys) t AS k",
            id="lateral view",
        ),
        pytest.param(
            "SELECT w.key FROM window w JOIN VALUES ('a', 1) AS v(name, n) ON v.name = w.key",
            "SELECT w.key, `w`.__window AS __window FROM `rows` AS w JOIN VALUES ('a', 1) AS v(name, n) "
            "ON v.name = w.key",
            id="a table that is the same for every window",
        ),
        pytest.param(
            "SELECT key FROM window ORDER BY event_time DESC LIMIT 3 OFFSET 1",
            "SELECT * EXCEPT (__row, __order_0) FROM (SELECT *, row_number() OVER (PARTITION BY __window ORDER BY "
            f"__order_0 DESC) AS __row FROM (SELECT key, event_time AS __order_0, {W} AS __window "
            "FROM `rows` AS `window`) AS __all) AS __numbered WHERE __row > 1 AND __row <= 4 "
            "ORDER BY __window NULLS LAST, __row NULLS LAST",
            id="the first of each window",
        ),
        pytest.param(
            "SELECT key, count(*) FROM window GROUP BY ALL HAVING count(*) > 1",
            f"SELECT key, count(*), {W} AS __window FROM `rows` AS `window` GROUP BY ALL HAVING count(*) > 1",
            id="group by all",
        ),
    ],
)
def test_every_scope_hands_the_window_on(query: str, expected: str) -> None:
    assert batched(query, "rows") == expected


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT key FROM window LIMIT 1 + 2", "LIMIT or ORDER BY of an expression"),
        ("SELECT key FROM window OFFSET 3", "OFFSET without LIMIT"),
        ("SELECT key FROM window ORDER BY rand() LIMIT 3", "in a random order"),
        ("SELECT DISTINCT key FROM window ORDER BY upper(key) LIMIT 3", "ordered by an expression"),
        ("SELECT key FROM window ORDER BY ALL LIMIT 3", "ORDER BY ALL"),
        ("SELECT key, (SELECT max(key) FROM window) FROM window", "a query inside an expression"),
        ("SELECT key FROM window w WHERE EXISTS (SELECT 1 FROM window v WHERE v.key > w.key)", "a query inside"),
        (
            "WITH a AS (SELECT key FROM window) SELECT key FROM window WHERE key IN (SELECT key FROM a)",
            "a query inside",
        ),
        ("SELECT key FROM window GROUP BY CUBE(key)", "grouping sets"),
        ("SELECT key FROM window GROUP BY key WITH ROLLUP", "grouping sets"),
        ("SELECT count(*) FROM window GROUP BY ()", "GROUP BY ()"),
        ("SELECT count(*) FROM window GROUP BY ALL", "GROUP BY ALL"),
        ("SELECT count(*) FROM window a JOIN window b ON a.x = b.x", "over possibly no rows"),
        ("SELECT count(*) FROM (SELECT key FROM window WHERE x > 1)", "over possibly no rows"),
        ("SELECT count(*) FROM window WHERE rand() < 0.5", "randomly chosen rows"),
        ("SELECT * FROM window a JOIN window b USING (key)", "* after NATURAL JOIN or USING"),
        ("SELECT struct(*) FROM window", "* inside a function"),
        ("SELECT key FROM window UNION ALL SELECT 'x'", "rows that do not belong to the window"),
        ("SELECT v.n FROM VALUES (1) AS v(n) LEFT JOIN window w ON v.n = w.n", "rows that do not belong to the window"),
        (
            "SELECT w.n FROM window w RIGHT JOIN VALUES (1) AS v(n) ON v.n = w.n",
            "rows that do not belong to the window",
        ),
        ("SELECT key FROM window TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("SELECT * FROM window PIVOT (count(*) FOR key IN ('a', 'b'))", "PIVOT"),
        ("SELECT key FROM window DISTRIBUTE BY key", "DISTRIBUTE BY"),
        ("SELECT key FROM window, LATERAL (SELECT window.key)", "LATERAL"),
        ("WITH RECURSIVE r AS (SELECT key FROM window) SELECT key FROM r", "RECURSIVE"),
        ("SELECT 1 AS one", "does not read the table"),
        ("SELECT 1 AS one FROM windows", "does not read the table"),
        ("INSERT INTO t SELECT key FROM window", "not a SELECT"),
        ("SELECT key FROM window; SELECT key FROM window", "not one query"),
        ("SELECT FROM WHERE", "cannot be parsed"),
    ],
)
def test_what_could_mix_windows_is_left_alone(query: str, reason: str) -> None:
    with pytest.raises(OneByOneError) as caught:
        batched(query, "rows")
    assert reason in str(caught.value)
