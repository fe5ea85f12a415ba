"""Fault injection: a pipeline is run, disturbed by a repeatable plan, and judged by an independent verifier.

    plan ─► session ─► runner, processes, path to the broker, disk        disturbs the run
               │  └──► resume                                             how soon it recovers
               └─────► oracle (a process without our code)                checks the result

Above it: `millstream chaos`, tests and benchmarks. Below it: `millstream_runner.local`.
"""
