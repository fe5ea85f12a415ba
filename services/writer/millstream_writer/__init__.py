"""The writing half of a vertex: routing, commits, back-pressure, delivery, and the interface of a sink.

A writer sends the results of a vertex to its edges and partitions, and commits them together with the progress that
they represent, as one atomic commit to the ledger of the vertex. It does not know how its input was read.
"""
