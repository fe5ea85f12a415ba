"""Whether a queue exists, for `validate --online`."""

from __future__ import annotations

from pathlib import Path

from millstream.errors import UserError
from millstream_connectors.sqs.client import linked
from millstream_connectors.sqs.settings import SqsQueue


async def look(queue: SqsQueue, base_dir: Path) -> list[tuple[str, str]]:
    """What does not fit the settings, with what is expected. Raises Millstream errors if the service cannot be reached
    or refuses access."""
    async with linked(queue, base_dir, "validate --online") as link:
        try:
            await link.ask("get_queue_attributes", AttributeNames=["QueueArn"])
        except UserError as error:
            if "there is no queue" in str(error):
                return [("there is no such queue", "an existing one")]
            raise
    return []
