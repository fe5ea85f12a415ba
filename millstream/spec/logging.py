"""What messages about records may show."""

from millstream.spec.values import Flag, SpecModel


class Logging(SpecModel):
    """What the messages of Millstream may show."""

    noun = "logging"

    values: Flag = True
    """Whether a message about a record shows the beginning of its value. What a function says in its own errors and
    logs is not touched. Default true."""
