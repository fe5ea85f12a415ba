"""What goes over a wire: the connection to the broker, its configuration, and generated modules of our own formats."""
