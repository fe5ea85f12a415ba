"""What log messages may show of records."""

from millstream.spec.values import Flag, SpecModel


class Logging(SpecModel):
    """What Millstream's messages may show."""

    noun = "logging"

    values: Flag = True
    """Whether a message about a record shows the beginning of its value. The function's own errors and logs are not
    changed. Default true."""
