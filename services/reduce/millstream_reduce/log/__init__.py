"""The write-ahead log of a reduce lane: entries in segments, durable in groups, read back after a crash.

entries     the format: encoding and reading one entry; what the engine's tasks use
segments    the files, their headers, and who may write
recovery    reading a log back, and where it ends
damage      what damage affects
files       the durable steps, apart
writer      writing and fsync, in the log's one thread
log         what the queue uses; which segments are kept when a new one begins
"""
