"""The local runner: a whole pipeline on one machine, `millstream run`.

Above it: the command line. Below it: processes (the broker, the vertices) and the data directory. It starts, watches,
restarts and ends processes and reads what they publish; it never touches a record.
"""
