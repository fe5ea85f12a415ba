"""The settings of the `opensearch` sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from millstream import codes
from millstream.spec.references import TextOrReference
from millstream.spec.values import After, Quantity, ShapeProblem, Text, problem, without_effect
from millstream_connectors.shared.tables.settings import DeleteWhen
from millstream_connectors.shared.web.settings import HTTP, WebServer, url_check

_INDEX = re.compile(r"[^\s_+.A-Z-][^\s/\\*?\"<>|,#:A-Z]*|\.[^\s/\\*?\"<>|,#:A-Z.][^\s/\\*?\"<>|,#:A-Z]*")


_INDEX_BYTES_MAX = 255


_REQUEST_BYTES_MAX = 100 << 20
"""The default of the server's `http.max_content_length`."""


def _checked_index(written: str) -> str:
    if _INDEX.fullmatch(written) is None or len(written.encode()) > _INDEX_BYTES_MAX:
        what = f"{written!r} is not the name of an index"
        expected = r"small letters, without spaces and \ / * ? < > | , # :, not beginning with _ - +"
        raise problem(codes.VALUE_MALFORMED, what, expected)
    return written


IndexName = Annotated[Text, After(_checked_index)]


class OpenSearchSink(WebServer):
    """Writes records as documents of an index, by bulk requests. Each document has an id that is the same on every
    attempt."""

    noun = "an opensearch sink"

    url: Annotated[TextOrReference, After(url_check(HTTP))]
    """Address of the cluster, `https://host:9200`, or a reference to it: `{env: NAME}` or `{file: PATH}`."""
    index: IndexName
    """Index, alias or data stream to which documents are written."""
    mode: Literal["insert", "upsert"] = "insert"
    """`insert` creates a document for each record; its id consists of the run's id and the record's. `upsert` creates
    or replaces the document that `id` identifies."""
    id: Text | None = None
    """With `upsert`: dotted path of the member of the record's JSON value that has the document's id, a text or a whole
    number. Default: the record's key; for several keys, their JSON array."""
    delete_when: DeleteWhen | None = None
    """With `upsert`: which records delete the document with their id."""
    lanes_index: IndexName = "millstream-lanes"
    """With `upsert`: index in which the sink counts the owners of each lane, for the versions of documents. It is
    created when it is needed."""
    compression: Literal["none", "gzip"] = "none"
    """Compression of requests."""
    max_bytes: Quantity = 5 << 20
    """Maximum uncompressed bytes of a request; a larger record is sent alone. Default 5 MiB."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects settings of `upsert` without it, and requests larger than servers accept."""
        yield from super().relation_problems()
        if self.mode != "upsert":
            given = {"id": self.id, "deleteWhen": self.delete_when}
            yield from without_effect(given, f"with `mode: {self.mode}`", "`mode: upsert`")
        if not 1 <= self.max_bytes <= _REQUEST_BYTES_MAX:
            what = "OpenSearch accepts requests of up to 100MiB"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("maxBytes",), what, "1B to 100MiB")
