"""Users of a NATS server that sign: by an NKey, or by a JWT that an operator's account has given them.

Above it: tests. Below it: the package `nkeys`, which callers import or skip without.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from typing import Any


def signed_user(nkeys: Any) -> tuple[str, str]:
    """The configuration of a server (a format string), and the contents of the credentials file of its only user."""
    operator, operator_id = new_nkey(nkeys, nkeys.PREFIX_BYTE_OPERATOR)
    account, account_id = new_nkey(nkeys, nkeys.PREFIX_BYTE_ACCOUNT)
    user, user_id = new_nkey(nkeys, nkeys.PREFIX_BYTE_USER)
    of_operator = jwt(nkeys, operator, operator_id, operator_id, {"type": "operator"})
    limits = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    unbounded = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    of_account = jwt(nkeys, operator, operator_id, account_id, {"type": "account", "limits": {**unbounded, **limits}})
    of_user = jwt(nkeys, account, account_id, user_id, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    # Without JetStream, which would want a system account.
    conf = f'listen: "127.0.0.1:-1"\noperator: {of_operator}\nresolver: MEMORY\n'
    conf += f"resolver_preload {{{{ {account_id}: {of_account} }}}}\n"
    return conf, (
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user}\n------END USER NKEY SEED------\n"
    )


def new_nkey(nkeys: Any, prefix: int) -> tuple[str, str]:
    """A seed, and the public key to it."""
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode()


def jwt(nkeys: Any, seed: str, issuer: str, subject: str, nats: dict[str, Any]) -> str:
    """What `nsc` signs."""
    claims: dict[str, Any] = {"iat": int(time.time()), "iss": issuer, "sub": subject, "name": "test"}
    claims["nats"] = {**nats, "version": 2}
    claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
    head, body = (encoded(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims))
    signature = nkeys.from_seed(bytearray(seed.encode())).sign(f"{head}.{body}".encode())
    return f"{head}.{body}.{encoded(signature)}"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
