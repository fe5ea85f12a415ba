"""The pipeline as users write it: models, graph checks, and loading that reports all problems at once.

Above: the command line and the local runner load files here; vertex processes read the resolved form. Below: plain
values only. It knows nothing of brokers or processes.
"""
