"""Google Cloud Pub/Sub outside: how pipeline files name it, and the way to it."""
