"""The source of `sqs`."""
