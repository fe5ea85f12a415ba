"""The reading half of a vertex: the buffer reader, the tracker of unfinished work, and the interface of a source.

A reader converts the contents of a source or an upstream ledger to frames for the function of its vertex, and knows the
position and the watermark of each of its lanes. It does not know where results go.
"""
