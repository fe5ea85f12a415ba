"""The first attempt to reach a target. A sink can be opened while its target is away.

Above it: sinks whose target is a server. Below it: nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from millstream.errors import RetryLaterError


async def first_try(opening: Awaitable[object], log: logging.Logger) -> None:
    """Wait for `opening`. If the server is away, logs it, and the first write waits for it. Raises other errors."""
    try:
        await opening
    except RetryLaterError as error:
        log.warning("%s", error)
