"""Savepoints: portable, consistent copies of what a pipeline remembers, and runs that begin with one."""
