"""Versions that a server tells about itself."""

PROTOCOL_VERSION = 1
"""Of `proto/millstream/udf/v1/udf.proto`."""
SDK_VERSION = "0.1.0"
"""Of this distribution."""
