"""What users run: the command line, pipelines on one machine, benchmarks and chaos.

It contains nothing that a vertex process needs, and no lower layer imports it.
"""
