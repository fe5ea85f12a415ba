"""External HTTP servers: how pipeline files name them, and the access to them."""
