"""`millstream test`: runs whole pipelines on cases, which contain input records and expected records.

case file ─► the pipeline with its sources and sinks replaced ─► a normal run ─► output ─► differences
"""
