"""The lanes of a vertex: they join the reader, the function of the user and the writer.

What all kinds of lanes share is here as well: their input watermark, their order, their commits, trimming. The lane of
a reduce, with everything about windows, is in `millstream_reduce`; the process is in `millstream_worker`.
"""
