"""An MQTT broker outside: how pipeline files name it, and the way to it."""
