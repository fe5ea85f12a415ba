"""Tokens of OAuth 2.0 for clients of servers: how pipeline files name who issues them, and how to get them."""
