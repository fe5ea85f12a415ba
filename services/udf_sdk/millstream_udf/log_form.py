"""What the lines of a function's log have in common with what reads them (docs/udf-protocol.md, "Logs").

Above it: the log of functions, and workers, which import nothing else for it.
"""

from __future__ import annotations

import logging

LEVEL_VARIABLE = "MILLSTREAM_LOG_LEVEL"
"""Environment variable that requests lines in Millstream's form, with the minimum level."""
MARKER = "millstream_log"
"""Member that distinguishes such a line from other JSON that a function prints."""
OF_EVERY_RECORD = {*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName"}
"""Attributes of every log record. A field must not replace one of them."""
