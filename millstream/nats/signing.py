"""What a client signs with: the seed of an NKey, or a user's JWT and seed in the form that `nsc` writes.

Above it: code that resolves credentials. Below it: the package `nkeys`. The client never stops reading a text in which
it does not find the beginning of a JWT, so it gets none that was not checked here.
"""

from __future__ import annotations

import re
from collections import UserString
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import UserError

_CREDENTIALS = re.compile(r"BEGIN NATS USER JWT-*\n[^\n]+\n.*BEGIN USER NKEY SEED-*\n([^\n]+)\n", re.DOTALL)


def check_nkeys(what: str) -> None:
    """Raises `UserError` if the package that signs is not installed. `what` names the setting."""
    if find_spec("nkeys") is None:
        raise UserError(
            codes.EXTRA_NEEDED,
            f"{what}: an NKey or a credentials file needs a package that is not installed here: "
            "`pip install 'millstream[nkeys]'`",
        )


def checked_seed(seed: str, what: str, code: Code) -> str:
    """The seed of an NKey. Raises `UserError` with `code` for another text, which is not in the message."""
    check_nkeys(what)
    if not _is_seed(seed):
        raise UserError(
            code, f"{what}: this is not the seed of an NKey, a text of 58 letters and digits that begins with SU"
        )
    return seed


def checked_credentials(text: str, what: str, code: Code) -> str:
    """The contents of a credentials file, as the client reads them. Raises `UserError` with `code` for another text,
    which is not in the message."""
    check_nkeys(what)
    text = _in_lines(text)
    if not _are_credentials(text):
        raise UserError(
            code, f"{what}: this is not the JWT and the seed of a user, as `nsc generate creds` writes them"
        )
    return text


class Credentials(UserString):
    """Credentials that the client reads for every connection. If they cannot be used then, reading them raises an error
    of the client, which tries again later."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._for_jwt: str | None = None

    @property
    def data(self) -> str:  # type: ignore[override]
        """The current contents. The client takes them twice for a connection, for the seed and at once for the JWT, and
        gets the same ones: the file may be replaced between the two."""
        if self._for_jwt is not None:
            text, self._for_jwt = self._for_jwt, None
            return text
        from millstream.nats.client import nats_errors

        try:
            text = self._read()
        except OSError as error:
            raise nats_errors.InvalidUserCredentialsError from error
        text = _in_lines(text)
        if not _are_credentials(text):
            raise nats_errors.InvalidUserCredentialsError
        self._for_jwt = text
        return text

    def __repr__(self) -> str:
        return "Credentials(…)"


def read_credentials(path: Path) -> str:
    """The contents of a credentials file, whatever its bytes. Raises `OSError`."""
    return path.read_text(encoding="utf-8", errors="replace")


def _in_lines(text: str) -> str:
    """A text whose lines have no spaces around them and end in a line feed. The client takes whole lines."""
    return "".join(f"{line.strip()}\n" for line in text.splitlines())


def _are_credentials(text: str) -> bool:
    found = _CREDENTIALS.search(text)
    return found is not None and _is_seed(found[1])


def _is_seed(text: str) -> bool:
    import nkeys  # type: ignore[import-untyped]

    try:
        nkeys.from_seed(bytearray(text.strip().encode())).wipe()
    except (nkeys.NkeysError, ValueError, IndexError):
        return False
    return text.strip().startswith("SU")
