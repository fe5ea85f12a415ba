"""Azurite, which emulates Azure's blob storage, as a place of Delta tables.

Azurite lists objects from the first one on, wherever a client asks it to begin (`startFrom` of List Blobs). deltalake
commits with such listings, and leaves the first objects out by itself only if its environment says that the store is an
emulator. The environment then also says where the emulator is, in place of `endpoint`. Reading needs none of this.

Above it: connectors of Delta tables. Below it: nothing, so `validate` needs no client.
"""

from __future__ import annotations

import os

from millstream_connectors.shared.objects.settings import ObjectStore

EMULATOR = "AZURE_STORAGE_USE_EMULATOR=true and AZURITE_BLOB_STORAGE_URL=http://HOST:PORT"
"""What the environment of a pipeline needs that writes to Azurite."""
_TRUE = ("1", "true", "on", "yes", "y")
"""As the client reads it, in any case of letters."""


def azurite_note(path: str, settings: ObjectStore | None) -> str | None:
    """What `validate` notes about a table to write that is probably in Azurite: Azure's own endpoints have TLS."""
    told = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in _TRUE
    endpoint = (settings.endpoint if settings is not None else None) or ""
    if told or not path.startswith("az://") or not endpoint.startswith("http://"):
        return None
    return f"the table can be written in Azurite only with {EMULATOR} in the environment of the pipeline"
