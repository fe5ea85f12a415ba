"""Pictures of pipelines and of their runs, without other programs or scripts: SVG, and pages that open offline.

Above it: `millstream graph`, `millstream run --report`. Below it: the graph, and figures.
"""
