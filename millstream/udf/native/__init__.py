"""The protocol of docs/udf-protocol.md: gRPC with encoded frames."""

import os

GRPC_SETTINGS = {
    # gRPC's fork handlers are for processes that use gRPC in a forked child. Our processes only start other programs,
    # and the handlers would write a warning at every start.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # Otherwise gRPC writes its own lines about peers that have gone away, which callers report anyway.
    "GRPC_VERBOSITY": "ERROR",
}
"""Default environment variables of a process that calls functions. They are not for the processes that it starts."""

# The variables must be set before gRPC is imported.
for _name, _value in GRPC_SETTINGS.items():
    os.environ.setdefault(_name, _value)
