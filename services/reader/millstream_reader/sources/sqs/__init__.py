"""The `sqs` source."""
