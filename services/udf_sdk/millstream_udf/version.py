"""Versions that a server reports."""

PROTOCOL_VERSION = 1
"""Version of the protocol in `proto/millstream/udf/v1/udf.proto`."""
SDK_VERSION = "0.2.0"
"""Version of this distribution."""
