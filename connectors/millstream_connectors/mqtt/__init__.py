"""Topics of MQTT: source and sink."""
