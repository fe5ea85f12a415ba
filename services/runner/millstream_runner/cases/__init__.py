"""`millstream test`: whole pipelines on cases, records in and records expected.

case file ─► the pipeline with its sources and sinks replaced ─► a run as any other ─► what came out ─► differences
"""
