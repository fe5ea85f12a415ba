"""The objects that match a source's URLs: listed, and downloaded into files.

Above it: `objects`. Below it: obstore, an extra. Everything here blocks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import obstore

from millstream.extract import microseconds_of
from millstream.files import create_private
from millstream_connectors.file.source.listing import ListedObject
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.objects.settings import ObjectStore, ObjectUrl, parse_url
from millstream_connectors.shared.objects.stores import CHANGED, FAILURES, Store, error_of, listed, make_store

_MAGIC = re.compile(r"[*?\[]")


class ChangedObjectError(Exception):
    """The object is not the one that was listed: it was replaced or removed."""


class Buckets:
    """The stores of a source, and which of their objects it reads."""

    def __init__(self, patterns: Sequence[str], settings: ObjectStore, base_dir: Path, where: str) -> None:
        """Raises `UserError` for missing credentials."""
        self._urls = [parse_url(pattern) for pattern in patterns]
        self._where = where
        self._stores: dict[str, Store] = {}
        for url in self._urls:
            if url.root not in self._stores:
                self._stores[url.root] = make_store(url, settings, base_dir, where)

    def list(self) -> list[ListedObject]:
        """All existing objects, each once. Raises Millstream errors."""
        found: dict[str, ListedObject] = {}
        for url in self._urls:
            with translating(FAILURES, partial(error_of, url=url, where=self._where)):
                found |= {item.name: item for item in self._of(url)}
        return list(found.values())

    def fetch(self, item: ListedObject, path: Path) -> None:
        """Download the object as it was listed. Raises `ChangedObjectError`, and Millstream errors."""
        url = parse_url(item.name)
        try:
            answer = obstore.get(self._stores[url.root], url.key, options={"if_match": item.etag})
            with os.fdopen(create_private(path), "wb") as file:
                for block in answer:
                    file.write(block)
        except (CHANGED, FileNotFoundError) as error:
            raise ChangedObjectError(item.name) from error
        except FAILURES as error:
            raise error_of(error, url, self._where) from error
        if path.stat().st_size != item.size:
            raise error_of(OSError("the response was truncated"), url, self._where)

    def _of(self, url: ObjectUrl) -> Iterator[ListedObject]:
        store = self._stores[url.root]
        magic = _MAGIC.search(url.key)
        if magic is None and url.key and not url.key.endswith("/"):
            with suppress(FileNotFoundError):
                yield _listed(url, obstore.head(store, url.key))
            return
        fixed = url.key[: magic.start()].rpartition("/")[0] if magic is not None else url.key.rstrip("/")
        wanted = re.compile(_translated(url.key) if magic is not None else ".*", re.DOTALL)
        for meta in listed(store, fixed or None):
            key = meta["path"]
            # By convention, names like these are not data: markers, and unfinished files.
            hidden = any(part[:1] in ("_", ".") for part in key[len(fixed) :].split("/"))
            if not hidden and wanted.fullmatch(key):
                yield _listed(url, meta)


def _listed(url: ObjectUrl, meta: obstore.ObjectMeta) -> ListedObject:
    return ListedObject(
        f"{url.root}/{meta['path']}", meta["e_tag"] or "", microseconds_of(meta["last_modified"]), meta["size"]
    )


def _translated(pattern: str) -> str:
    """A glob pattern as a regular expression: `**/` matches any depth, `*` and `?` match within one part of a name."""
    text, index = "", 0
    while index < len(pattern):
        rest = pattern[index:]
        if rest.startswith("**/"):
            text, index = f"{text}(?:.*/)?", index + 3
        elif rest.startswith("**"):
            text, index = f"{text}.*", index + 2
        elif rest[0] == "*":
            text, index = f"{text}[^/]*", index + 1
        elif rest[0] == "?":
            text, index = f"{text}[^/]", index + 1
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inner = rest[1:end].replace("\\", "\\\\")
            text, index = f"{text}[{'^' + inner[1:] if inner[0] == '!' else inner}]", index + end + 1
        else:
            text, index = text + re.escape(rest[0]), index + 1
    return text
