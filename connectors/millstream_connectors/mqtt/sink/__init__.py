"""The sink of `mqtt`."""
