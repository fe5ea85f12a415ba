"""The `httpPoll` source."""
