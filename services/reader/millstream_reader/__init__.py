"""The reading half of a vertex: sources, the buffer reader and the tracker of unfinished work.

A reader turns what a source or an upstream ledger holds into frames for the function of its vertex, and
knows the position and the watermark of each of its lanes. It does not know where results go.
"""
