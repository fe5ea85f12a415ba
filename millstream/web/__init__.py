"""Servers outside that are reached over HTTP: how pipeline files name them, and the way to them."""
