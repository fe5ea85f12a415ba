"""Network protocols: HTTP, TLS and Kafka connections, and the generated modules of our own formats."""
