"""Who may ask a Spark driver: at a Unix socket whoever may open it, at a port whoever has the token.

Above it: the driver's server and its clients. Below it: gRPC. The token comes in the environment, where other users of
a machine cannot read it, and never on a command line, where they can.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from millstream.errors import UserError

TOKEN_VARIABLE = "MILLSTREAM_SPARK_TOKEN"
"""Environment variable with the token, for the driver and for those who ask it."""
_HEADER = "authorization"
_SCHEME = "Bearer "

Metadata = tuple[tuple[str, str], ...]


def call_metadata(token: str) -> Metadata:
    """What goes along with each call."""
    return ((_HEADER, f"{_SCHEME}{token}"),) if token else ()


def check_address(address: str, token: str) -> None:
    """Raise `UserError` where anybody who reaches `address` could have queries and functions run."""
    if not token and not address.startswith("unix:"):
        raise UserError(
            f"the Spark driver would run what anybody asks for who reaches {address}: give it and its vertices the "
            f"same secret in the environment variable {TOKEN_VARIABLE}, or let it listen on a Unix socket (unix:/path)"
        )


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"{_SCHEME}{token}".encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The call itself, or one that is refused."""
        told = dict(handler_call_details.invocation_metadata or ()).get(_HEADER, "")
        given = told if isinstance(told, bytes) else told.encode()
        if hmac.compare_digest(given, self._expected):
            return await continuation(handler_call_details)
        # A call that streams its answer is refused by the same handler: it ends before its first message.
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"the token of {TOKEN_VARIABLE} is missing, or another one")
