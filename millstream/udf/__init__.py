"""User-defined functions from the caller's side: the protocol, its gRPC client, and the processes behind it."""

import os

# Before gRPC is imported. Its fork handlers are for processes that use gRPC in a forked child; ours only ever start
# other programs, and the handlers would write a warning at every start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
