"""The sink of `sqs`."""
