"""The settings of the `httpPoll` source, as pipeline files have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from millstream.spec.references import TextOrReference
from millstream.spec.values import (
    After,
    Flag,
    PositiveDuration,
    ShapeProblem,
    SpecModel,
    Text,
    conflicts,
    exactly_one,
    field,
)
from millstream_connectors.shared.web.settings import HTTP, WebServer, url_check

_WAYS = ("path", "recordField", "link")


def _without_false(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """`link: false` means the same as no `link`."""
    return {name: value for name, value in data.items() if name != "link" or value is not False}


class PollCursor(SpecModel):
    """Where an answer has the cursor of the next request."""

    noun = "a cursor"

    path: Text | None = None
    """Dotted path of the next cursor in the answer, such as `meta.next`."""
    record_field: Text | None = field(default=None, alias="recordField")
    """Dotted path of a member of each record, such as `id`. Its value in the last record is the next cursor. The answer
    to a cursor must not include the record with that value."""
    link: Flag = False
    """The next cursor is the URL in the header `Link` with `rel="next"`."""
    parameter: Text | None = None
    """Query parameter that carries the cursor. Default: the cursor is the URL of the next request, on the same
    server."""
    start: TextOrReference | None = None
    """Cursor of the first request of the first run. Default: none, so the server decides."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires exactly one place."""
        yield from exactly_one(_without_false(data), _WAYS, cls.noun)

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires a parameter for a cursor that is not a URL, and for a start."""
        yield from conflicts(
            (
                self.link and self.parameter is not None,
                ("parameter",),
                "the cursor in `Link` is a URL, which needs no parameter",
                "`link` without it",
            ),
            (
                self.parameter is None and (self.record_field is not None or self.start is not None),
                ("parameter",),
                "no parameter carries the cursor to the server",
                "the name of a query parameter",
            ),
        )


class PollPages(SpecModel):
    """How the answer to one poll continues on further pages."""

    noun = "pages"

    path: Text | None = None
    """Dotted path of the URL of the next page in the answer."""
    link: Flag = False
    """The URL of the next page is in the header `Link` with `rel="next"`."""
    parameter: Text | None = None
    """Query parameter with the page number, which begins at 1; a page without records is the last."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires exactly one way."""
        yield from exactly_one(_without_false(data), ("path", "link", "parameter"), cls.noun)


class HttpPollSource(WebServer):
    """Polls a server, and reads records from its answers."""

    noun = "an httpPoll source"

    url: Annotated[TextOrReference, After(url_check(HTTP))]
    """URL to request by GET, or a reference to it: `{env: NAME}` or `{file: PATH}`."""
    interval_s: PositiveDuration = field(default=60.0, alias="interval")
    """Pause between two polls. Duration, default 60s."""
    body: Literal["json", "lines", "raw"] = "json"
    """Format of answers: `json` (the elements of an array are the records, any other value is one record), `lines` (a
    record in each line that is not empty, such as JSON lines) or `raw` (the answer is one record)."""
    records: Text | None = None
    """Dotted path of the array in a JSON answer. Default: the answer itself."""
    cursor: PollCursor | None = None
    """Where an answer has the cursor of the next request. Default: no cursor; each poll sends the same request."""
    pages: PollPages | None = None
    """How the answer to one poll continues on further pages. Default: it has one page."""
    stop_at_end: Flag = False
    """End after one poll with all its pages; with `cursor`, at the first answer without another cursor."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects paths into answers that are not JSON, and `pages` together with a `cursor`."""
        yield from super().relation_problems()
        cursor, pages, is_json = self.cursor, self.pages, self.body == "json"
        path_needs_json = "a path needs a JSON answer", "`body: json`"
        yield from conflicts(
            (
                cursor is not None and pages is not None,
                ("pages",),
                "`cursor` already leads from page to page",
                "`cursor` without `pages`",
            ),
            (not is_json and self.records is not None, ("records",), *path_needs_json),
            (not is_json and cursor is not None and cursor.path is not None, ("cursor", "path"), *path_needs_json),
            (not is_json and pages is not None and pages.path is not None, ("pages", "path"), *path_needs_json),
            (
                self.body == "raw" and cursor is not None and cursor.record_field is not None,
                ("cursor", "recordField"),
                "a raw answer is not a JSON record",
                "`body: json` or `body: lines`",
            ),
        )
