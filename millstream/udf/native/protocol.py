"""The native protocol, which pipeline files call `millstream`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from millstream.spec.protocols import FunctionKind
from millstream.udf.lives import Lives
from millstream.udf.protocol import ClientTls, Connection, UdfProtocol


class _Native(UdfProtocol):
    serves = frozenset(FunctionKind)
    encrypts = True
    streams = True

    def connect(
        self, target: str, lives: Lives, tls: ClientTls | None = None
    ) -> AbstractAsyncContextManager[Connection]:
        # Importing gRPC takes a while, and `validate` does not call functions.
        from millstream.udf.native.client import open_connection

        return open_connection(target, lives, tls)


NATIVE = _Native()
