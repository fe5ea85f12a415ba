"""User-defined functions from the caller's side: the protocol, its gRPC client, and the processes behind it."""
