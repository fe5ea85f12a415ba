"""An external Amazon SQS queue: how pipeline files name it, and the access to it."""
