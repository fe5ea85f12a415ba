"""A query is data: what the author of a pipeline writes as SQL reads its window and computes, or is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.spec.sql import UNSAFE_FUNCTIONS, unsafe_part
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark.wire import open_spark_client
from tests.spark_driver import SparkDriver
from tests.support.sizes import sized

LIMIT_S = 500.0
CALL = "reflect('java.lang.System', 'getProperty', 'user.home')"
SECRET = "the contents of a file"
TRICKS = {
    f"SELECT {CALL} AS x FROM window": "line 1, column 8: it calls `reflect`",
    "SELECT count(*) AS n,\n  java_method('java.lang.System', 'getenv', 'HOME') AS x FROM window": "line 2, column 3",
    f"SELECT try_{CALL} AS x FROM window": "it calls `try_reflect`",
    f"SELECT system.builtin.{CALL} AS x FROM window": "it calls `reflect`",
    f"SELECT `REFLECT`{CALL.removeprefix('reflect')} AS x FROM window": "it calls `reflect`",
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'lineSeparator') AS x FROM window": "IDENTIFIER",
    f"SELECT (SELECT max({CALL}) FROM window) AS x FROM window": "it calls `reflect`",
    f"WITH w AS (SELECT {CALL} AS x FROM window) SELECT w.x FROM w": "it calls `reflect`",
    f"SELECT /*+ BROADCAST(window) */ {CALL} AS x FROM window": "it calls `reflect`",
    f"SELECT t.x FROM window, LATERAL (SELECT {CALL} AS x) t": "it calls `reflect`",
    f"SELECT count(*) AS n FROM window WHERE key IN (SELECT {CALL} FROM window)": "it calls `reflect`",
    f"SELECT count(*) AS n FROM window HAVING max({CALL}) > 'a'": "it calls `reflect`",
    f"SELECT transform(keys, k -> {CALL}) AS x FROM window": "it calls `reflect`",
    "SELECT * FROM csv.`FILE`, window": "it reads `csv.FILE`",
    "SELECT (SELECT first(value) FROM text.`FILE`) AS x FROM window": "it reads `text.FILE`",
    "WITH w AS (SELECT * FROM text.`FILE`) SELECT w.* FROM w, window": "it reads `text.FILE`",
    "SELECT * FROM window UNION ALL SELECT * FROM binaryFile.`FILE`": "it reads `binaryFile.FILE`",
    "SELECT * FROM IDENTIFIER('text.`FILE`'), window": "it reads `text.FILE`",
    "SELECT TRANSFORM(key) USING 'cat FILE' AS (x STRING) FROM window": "ScriptTransformation",
    "SELECT from_avro(value, '', map('avroSchemaUrl', 'FILE')) AS x FROM window": "it calls `from_avro`",
    "SELECT from_xml(key, 'x INT', map('rowValidationXSDPath', 'FILE')) AS x FROM window": "it calls `from_xml`",
    "SELECT xpath_string(CAST(value AS STRING), 'a') AS x FROM window": "it calls `xpath_string`",
    "SELECT system.builtin.XPATH(CAST(value AS STRING), 'a') AS x FROM window": "it calls `xpath`",
    "SELECT * FROM sql_keywords(), window": "it calls `sql_keywords`",
    "SELECT * FROM __rows_0, window": "it reads `__rows_0`",
    "WITH __rows_0 AS (SELECT * FROM __rows_0) SELECT * FROM __rows_0, window": "it reads `__rows_0`",
    "SELECT * FROM __rows_0, (WITH __rows_0 AS (SELECT 1) SELECT * FROM __rows_0), window": "it reads `__rows_0`",
    "WITH a AS (SELECT * FROM __rows_0), __rows_0 AS (SELECT 1) SELECT * FROM a, window": "it reads `__rows_0`",
    "SELECT 1 FROM window) AS t, (SELECT * FROM text.`FILE`": "line 1, column 21: Syntax error",
    "ADD JAR 'FILE'": "it is not a query",
    "ADD ARCHIVE 'FILE'": "it is not a query",
    "CREATE FUNCTION f AS 'org.apache.Any' USING JAR 'FILE'": "it is not a query",
    "CREATE TABLE t USING csv OPTIONS (path 'FILE')": "it is not a query",
    "INSERT OVERWRITE DIRECTORY 'FILE' USING csv SELECT * FROM window": "it is not a query",
    "SET spark.driver.extraJavaOptions=-agentpath:FILE": "it is not a query",
    "CACHE TABLE window": "it is not a query",
}
"""What a query might try, and a part of what is said."""
TOLD_BY_TEXT = [
    trick
    for trick, said in TRICKS.items()
    if said.startswith(("it calls", "it reads"))
    and not any(part in trick for part in ("sql_keywords", "IDENTIFIER", "__rows_0 AS"))
]
HARMLESS = (
    "SELECT key, count(*) AS n, percentile(length(value), 0.9) AS p FROM window GROUP BY key HAVING n > 1 ORDER BY n",
    "WITH w AS (SELECT key, explode(keys) AS k FROM window) SELECT k, count(DISTINCT key) AS n FROM w GROUP BY k",
    "SELECT key, t.k FROM window LATERAL VIEW posexplode(keys) t AS at, k",
    "SELECT a.key, b.n FROM window a JOIN (SELECT key, count(*) AS n FROM window GROUP BY key) b ON a.key = b.key",
    "SELECT key, row_number() OVER (PARTITION BY key ORDER BY event_time) AS n FROM window",
    "SELECT * FROM (SELECT key, 1 AS n FROM window) PIVOT (sum(n) FOR key IN ('a', 'b'))",
    "SELECT key FROM window EXCEPT SELECT 'a' AS key",
    "SELECT key, (SELECT max(v) FROM VALUES (1), (2) AS t(v)) AS n FROM window",
    "SELECT key, r.id FROM window, LATERAL (SELECT id FROM range(2)) r LIMIT 5",
    "SELECT key, grouping(key) AS g, count(*) AS n FROM window GROUP BY GROUPING SETS ((key), ())",
    "SELECT from_json(CAST(value AS STRING), 'a INT').a AS a, event_time + INTERVAL 1 HOUR AS t FROM window",
    "SELECT aggregate(sequence(1, size(keys)), 0, (a, b) -> a + b) AS n, TRY_CAST(key AS INT) AS k FROM window",
    "SELECT count(*) FILTER (WHERE key LIKE 'a%') AS n, max_by(key, event_time) AS k, now() AS t FROM window",
)


def program(query: str, *, unsafe: bool = False) -> engine_pb2.Program:
    value = engine_pb2.ValueSchema(format="raw")
    return engine_pb2.Program(sql=engine_pb2.SqlProgram(query=query, value=value, unsafe=unsafe), keyed=True)


@pytest.mark.timeout(900)
async def test_spark_refuses_each_trick_where_it_stands_and_no_harmless_query(
    tmp_path: Path, spark: SparkDriver
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    wrong = []
    async with asyncio.timeout(LIMIT_S), open_spark_client(spark.address) as client:
        for trick, said in list(TRICKS.items())[:: sized(3, 1)]:
            answer = await client.check(program(trick.replace("FILE", str(file))))
            if not any(said.replace("FILE", str(file)) in fault for fault in answer.faults):
                wrong.append((trick, list(answer.faults)))
        for query in HARMLESS[:: sized(3, 1)]:
            answer = await client.check(program(query))
            if answer.faults:
                wrong.append((query, list(answer.faults)))
        refused = await client.check(program(f"SELECT {CALL} AS x FROM window"))
        allowed = await client.check(program(f"SELECT {CALL} AS x FROM window", unsafe=True))
    assert not wrong
    assert "set `unsafe: true` next to it" in refused.faults[0]
    assert not allowed.faults


@pytest.mark.parametrize("name", sorted(UNSAFE_FUNCTIONS))
def test_the_text_alone_tells_each_function_that_does_more(name: str) -> None:
    assert f"`{name}`" in (unsafe_part(f"SELECT {name.upper()}(key, 'a') AS x FROM window") or "")


@pytest.mark.parametrize("query", TOLD_BY_TEXT)
def test_the_text_alone_tells_most_of_it(query: str) -> None:
    assert unsafe_part(query) is not None


@pytest.mark.parametrize("query", HARMLESS)
def test_the_text_of_a_harmless_query_tells_nothing(query: str) -> None:
    assert unsafe_part(query) is None
