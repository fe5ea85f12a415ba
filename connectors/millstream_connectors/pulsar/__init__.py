"""Topics of Pulsar: source and sink."""
