"""Network protocols: HTTP and TLS connections, and the generated modules of our own formats."""
