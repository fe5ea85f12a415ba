"""What maps and reduces have in common: vertices with a function written by the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millstream.spec.kinds import on_failure_of, program_text
from millstream.spec.problems import Path
from millstream.spec.programs import RetryStrategy, Udf
from millstream_worker.kind import RunnableKind


class UdfKind(RunnableKind[Udf]):
    """Calls a function of the user, a query or a built-in."""

    model = Udf
    meaning = "Makes it a map vertex, or a reduce vertex where it has `groupBy`."

    def contents(self, settings: Udf) -> str:
        if settings.builtin is not None:
            return settings.builtin.name
        if settings.container is None and settings.sql is not None:
            return "SQL"
        return program_text(settings)

    def retry(self, settings: Udf) -> RetryStrategy:
        return settings.retry_strategy

    def dead_letters(self, written: Mapping[str, Any], watermark: Mapping[str, Any]) -> bool:
        return written.get("builtin") is None and on_failure_of(written) in ("", "deadLetter")

    def dead_letters_asked(self, written: Mapping[str, Any]) -> Iterator[Path]:
        if on_failure_of(written) == "deadLetter":
            yield ("retryStrategy", "onFailure")
