"""Queues of Amazon SQS: source and sink."""
