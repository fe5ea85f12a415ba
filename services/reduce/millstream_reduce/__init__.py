"""Everything about windows: their lane, their assignment, the persistent bounded queue and its log, their engine.

A reduce lane stores the records of every open window durably until the watermark closes the window, then hands exactly
those records over for aggregation.
"""
