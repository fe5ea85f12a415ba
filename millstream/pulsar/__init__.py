"""An external Pulsar cluster: how pipeline files name it, and the client that connects to it."""
