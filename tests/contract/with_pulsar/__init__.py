"""Pulsar: one server for all of it."""
