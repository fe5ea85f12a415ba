"""Certificates and tokens that may be replaced while a listener uses them.

Above it: listeners, which get the newest value at each connection or request. Below it: texts from the places that the
spec names. If a replacement cannot be used, the last usable value stays.
"""

from __future__ import annotations

import hmac
import logging
import ssl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from millstream import codes
from millstream.clock import Clock
from millstream.errors import UserError
from millstream.files import write_private
from millstream.limits import REREAD_INTERVAL_S
from millstream.wire.client_tls import no_passphrase

_log = logging.getLogger(__name__)

T = TypeVar("T")


class RebuiltValue(Generic[T]):
    """A value that is built from texts, and rebuilt when the texts have changed."""

    def __init__(
        self, read: Callable[[], Sequence[str]], make: Callable[[Sequence[str]], T], what: str, clock: Clock
    ) -> None:
        """Raises the `UserError` of `read` or `make`. Later errors of these leave the value unchanged. `what` names the
        value in messages, which never contain the texts."""
        self._read = read
        self._make = make
        self._what = what
        self._clock = clock
        self._texts = tuple(read())
        self._value = make(self._texts)
        self._checked_at_s = clock.monotonic_s()
        self._last_logged = ""

    def newest(self) -> T:
        """The current value, at most a second old."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._checked_at_s + REREAD_INTERVAL_S:
            self._checked_at_s = now_s
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            texts = tuple(self._read())
            if texts == self._texts:
                self._last_logged = ""
                return
            self._value = self._make(texts)
        except UserError as error:
            if str(error) != self._last_logged:
                self._last_logged = str(error)
                _log.warning("%s cannot be replaced, so the former one stays in use: %s", self._what, error)
            return
        self._texts, self._last_logged = texts, ""
        _log.info("%s was replaced", self._what)


class Tokens:
    """The valid bearer tokens: several while one replaces another."""

    def __init__(self, texts: Sequence[str]) -> None:
        """`texts`: texts with a token on each line. Errors: `UserError` if there is no token."""
        self._tokens = [line.strip().encode() for text in texts for line in text.splitlines() if line.strip()]
        if not self._tokens:
            raise UserError(codes.SECRET_MISSING, "there is no token")

    def holds(self, shown: bytes) -> bool:
        """Whether a token is valid. The time it takes does not depend on how much of the token is right."""
        found = [hmac.compare_digest(shown, token) for token in self._tokens]
        return any(found)


def server_context(texts: Sequence[str], what: str) -> ssl.SSLContext:
    """TLS 1.2 or later for a server.

    Args:
        texts: Certificate chain and private key as PEM, then, if clients must present certificates, those of the
            authorities that issue them.
        what: Names the setting in messages.

    Errors:
        `UserError` if they cannot be used.
    """
    chain, key, *authorities = texts
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Python reads them only from files. Only this user has access to the directory.
        with tempfile.TemporaryDirectory(prefix="millstream-tls-") as directory:
            paths = [Path(directory) / name for name in ("chain", "key")]
            for path, text in zip(paths, (chain, key), strict=True):
                write_private(path, text)
            context.load_cert_chain(paths[0], paths[1], password=no_passphrase)
        for authority in authorities:
            context.load_verify_locations(cadata=authority.encode("ascii", "ignore").decode())
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise UserError(
            codes.CERTIFICATES,
            f"{what}: the certificates cannot be used: {reason}; they must be PEM files that belong together",
        ) from error
    return context
