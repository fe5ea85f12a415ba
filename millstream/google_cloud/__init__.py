"""Shared by connectors to services of Google Cloud: the address of a service, and an authenticated channel to it."""
