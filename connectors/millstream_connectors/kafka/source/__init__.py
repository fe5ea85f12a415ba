"""The source of `kafka`."""
