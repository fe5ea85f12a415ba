"""What connectors of several technologies need."""
