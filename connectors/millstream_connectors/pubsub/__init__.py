"""Google Cloud Pub/Sub: source and sink."""
