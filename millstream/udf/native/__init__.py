"""The protocol of docs/udf-protocol.md: gRPC, with frames as they are."""

import os

GRPC_SETTINGS = {
    # Its fork handlers are for processes that use gRPC in a forked child; ours only ever start other programs, and the
    # handlers would write a warning at every start.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # Of peers that have gone away it would write lines of its own; callers report that themselves.
    "GRPC_VERBOSITY": "ERROR",
}
"""Environment of a process that calls functions, unless it has others: not meant for the processes it starts."""

# Before gRPC is imported.
for _name, _value in GRPC_SETTINGS.items():
    os.environ.setdefault(_name, _value)
