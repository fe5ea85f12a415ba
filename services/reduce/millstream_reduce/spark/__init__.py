"""The engine of pipelines: closed windows are computed by Spark, in a process of its own.

    reduce lane ── wire ══ gRPC ══ driver process: serving ─► executor ─► session ─► jobs ── JVM ── Python workers

One driver process for each pipeline. It has no important state, and may die at any time.

the process          driver ─ serving (requests) ─ executor (which of them are one job) ─ wire (client, token, errors)
Spark, started       settings ─ session ─ jvm ─ java, aot (what an installation stores) ─ preparing (warming up)
plans and SQL        jobs ─ sql ─ dialect, batching, preaggregation, columns, safety ─ prepared (plans) ─ faults
in Python workers    worker_daemon, function_daemon ─ manifest (which rows) ─ rows, decoding, partials ─ reducing

What the workers import is imported in every one of them: `worker_daemon` knows what is in their memory before the first
task. The driver imports neither Spark nor gRPC before it has started the JVM.
"""
