"""The protocol `lines`, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from millstream.spec.protocols import FunctionKind
from millstream.udf.lives import Lives
from millstream.udf.protocol import ClientTls, Connection, UdfProtocol


class Lines(UdfProtocol):
    serves = frozenset({FunctionKind.MAP})

    def connect(
        self, target: str, lives: Lives, tls: ClientTls | None = None
    ) -> AbstractAsyncContextManager[Connection]:
        from millstream_toys.lines.connection import open_lines

        return open_lines(target.removeprefix("unix:"), lives)

    def environment(self, socket: Path) -> Mapping[str, str]:
        return {"LINES_SOCKET": str(socket)}


LINES = Lines()
