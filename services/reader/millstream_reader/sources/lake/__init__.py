"""The common part of table sources: a lane that reads rows file by file."""
