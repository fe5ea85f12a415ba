"""Topics of Kafka: source and sink."""
