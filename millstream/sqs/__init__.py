"""A queue of Amazon SQS outside: how pipeline files name it, and the way to it."""
