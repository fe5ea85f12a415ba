"""An external MQTT broker: how pipeline files name it, and the connection to it."""
