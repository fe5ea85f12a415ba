"""What people run: the command line, pipelines on one machine, benchmarks and chaos.

Nothing that a vertex process needs lies here, and nothing below imports it.
"""
