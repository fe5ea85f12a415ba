"""Answers of a server that is asked again and again."""
