"""Event-time streaming pipelines whose steps are functions in any language, exactly once.

This package has the concepts and mechanisms that every process of a pipeline shares: records and frames,
the ledger between two vertices, watermarks, the pipeline specification, and the calling side of a user
function. The packages under `services/` are built on it; it does not depend on any of them.
"""
