"""The `sqs` sink."""
