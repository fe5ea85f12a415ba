"""The function of the pipeline: what others may see of a customer."""

from __future__ import annotations

import json


def process(value: bytes) -> bytes:
    """A change without the address, except for its domain."""
    change = json.loads(value)
    row = change["after"]
    customer = row or change["before"]
    seen = {"id": customer["id"], "op": change["op"], "at": [change["lsn"], change["index"]]}
    if row is not None:
        seen |= {"name": row["name"], "domain": row["email"].partition("@")[2]}
    return json.dumps(seen).encode()
