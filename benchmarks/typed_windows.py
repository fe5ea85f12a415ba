"""What a record costs on its way from a function with types into the windows of an SQL reduce.

    python benchmarks/typed_windows.py [--records N] [--rounds N] [--json]
    python benchmarks/compare.py --base REV --times 3 -- $PWD/benchmarks/typed_windows.py --json

file (lines of 120 bytes) → price → sums of each customer, in Spark → blackhole, with `millstream run` as it is. The
function has types (a dataclass, whose objects become JSON that Spark's workers parse) or takes Arrow's columns with a
schema. Figures are processor seconds of all processes for a million records, above those of a run with half a million
records, in which Spark starts and the JVM compiles what it needs; medians of the rounds, in turns. The functions are
those of `typed_chain.py`.
"""

from __future__ import annotations

from typed_chain import HEAD, tell

FEW = 500_000
WINDOWS = (
    HEAD
    + """\
    - {name: price, udf: {python: "functions.py:price"}}
    - name: sums
      udf:
        groupBy: {window: {fixed: {length: 60s}}}
        sql:
          query: >
            SELECT value.customer AS customer, count(*) AS orders, sum(value.total) AS total
            FROM window GROUP BY value.customer
          value: {format: json, fields: "customer STRING, total DOUBLE"}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: price}
    - {from: price, to: sums}
    - {from: sums, to: out}
"""
)


if __name__ == "__main__":
    tell("typed_windows", __doc__, {"windows": WINDOWS}, FEW, 4_000_000)
