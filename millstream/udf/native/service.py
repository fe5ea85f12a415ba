"""Names, settings and errors of the gRPC service, for the asynchronous and the synchronous client."""

from __future__ import annotations

import grpc

from millstream import codes
from millstream.errors import UdfError
from millstream.limits import GRPC_MESSAGE_BYTES_MAX

PROTOCOL_VERSION = 1
"""Version of the protocol in `proto/millstream/udf/v1/udf.proto`."""
SERVICE = "/millstream.udf.v1.Udf"
"""Prefix of the method names."""
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    # A sidecar is on the same machine: its return should be noticed immediately. The supervisor has the backoff.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Each function has its own channel, and so its own connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
FATAL = {
    grpc.StatusCode.UNIMPLEMENTED: (codes.FUNCTION_KIND, "the function does not serve this kind"),
    grpc.StatusCode.FAILED_PRECONDITION: (codes.FUNCTION_REFUSES, "the function refused the stream"),
    grpc.StatusCode.INVALID_ARGUMENT: (codes.FUNCTION_REFUSES, "the function refused the stream"),
    grpc.StatusCode.PERMISSION_DENIED: (codes.FUNCTION_REFUSES, "the function refused the stream"),
    grpc.StatusCode.UNAUTHENTICATED: (codes.FUNCTION_REFUSES, "the function refused the stream"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (codes.FUNCTION_MESSAGE_SIZE, "a message was larger than the protocol allows"),
    grpc.StatusCode.OUT_OF_RANGE: (codes.FUNCTION_MESSAGE_SIZE, "a message was larger than the protocol allows"),
}
"""Statuses with which a stream would end again after a retry: the cause has to be removed."""


def fatal_error(code: grpc.StatusCode, details: str | None, where: str) -> UdfError | None:
    """The error for a stream that has ended with this status, if the next one would end as well."""
    if code not in FATAL:
        return None
    error_code, what = FATAL[code]
    return UdfError(error_code, f"{where}: {what}: {details or code.name}")
