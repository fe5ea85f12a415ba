"""The lanes of a vertex: they join the reader, the user's function and the writer.

This package also has what all kinds of lanes share: input watermark, order, commits, trimming. The lane of a reduce,
with everything about windows, is in `millstream_reduce`; the process is in `millstream_worker`.
"""
