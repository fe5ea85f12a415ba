"""The first try to reach a target. One that is away does not keep its sink from opening.

Above it: sinks whose target is a server. Below it: nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from millstream.errors import RetryLaterError


async def first_try(opening: Awaitable[object], log: logging.Logger) -> None:
    """Wait for `opening`. A server that is away is logged, and the first write waits for it. Raises other errors."""
    try:
        await opening
    except RetryLaterError as error:
        log.warning("%s", error)
