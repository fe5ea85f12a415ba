"""Write the steps of a Millstream pipeline as Python functions.

The package serves plain or decorated functions to a pipeline over a unix socket. It needs grpcio and
protobuf only and imports nothing of the `millstream` distribution.
"""
