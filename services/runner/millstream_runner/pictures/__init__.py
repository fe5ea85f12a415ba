"""Pictures of pipelines and of their runs, made without any program or script: SVG, and pages that open offline.

Above it: `millstream graph`, `millstream run --report`. Below it: the graph, and numbers.
"""
