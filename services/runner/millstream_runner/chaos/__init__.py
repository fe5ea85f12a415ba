"""Faults on purpose: a pipeline is run, disturbed by a plan that can be repeated, and judged by a verifier of its own.

    plan ─► session ─► runner, processes, path to the broker, disk        what is done to the run
               │  └──► resume                                             how soon it is back
               └─────► oracle (a process that imports nothing of ours)    what is true in the end

Above it: `millstream chaos`, tests and benchmarks. Below it: `millstream_runner.local`.
"""
