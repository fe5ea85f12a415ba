"""The computation of closed windows by Spark, and the process that runs it.

    reduce lane ── client ══ gRPC ══ driver process (service ─► executor ─► session ─► jobs) ── JVM ── Python workers

One driver process for each pipeline. It holds no state that matters: it may die at any time.
"""
