"""The windows of a reduce vertex: assignment, the persistent bounded queue and its write-ahead log.

A reduce lane keeps the records of every open window durable until the watermark closes the window, then
hands exactly those records over for aggregation.
"""
