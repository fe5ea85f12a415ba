"""What a function is configured with, and the two ways in which it gets that. Pure.

    a process that we start          its environment
    one that something else starts   the first message of each stream

Above it: the vertex process, which looks secrets up. Below it: nothing. `millstream_udf.settings` is the other side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream_udf.settings import CONFIG_VARIABLE, SECRETS_VARIABLE


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """The settings of one program."""

    config: str = ""
    """A JSON object; empty for none."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def environment(self) -> dict[str, str]:
        """The variables for its process."""
        variables = {CONFIG_VARIABLE: self.config} if self.config else {}
        if self.secrets:
            variables[SECRETS_VARIABLE] = secrets_text(self.secrets)
        return variables


NO_SETTINGS = FunctionSettings()


def secrets_text(secrets: Mapping[str, str]) -> str:
    """The secrets as JSON."""
    return json.dumps(secrets, ensure_ascii=False, separators=(",", ":"))
