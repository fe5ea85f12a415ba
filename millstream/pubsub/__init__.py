"""Google Cloud Pub/Sub: how pipeline files name it, and the connection to it."""
