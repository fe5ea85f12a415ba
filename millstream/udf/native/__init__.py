"""The protocol of docs/udf-protocol.md: gRPC, with frames as they are."""
