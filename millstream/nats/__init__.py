"""NATS as a server that is connected to: where it is, who one is to it, and requests with honest answers."""
