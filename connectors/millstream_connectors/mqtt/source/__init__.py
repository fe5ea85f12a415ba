"""The source of `mqtt`."""
