"""Events of a server that sends them over HTTP."""
