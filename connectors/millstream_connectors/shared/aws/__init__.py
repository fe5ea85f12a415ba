"""Services of AWS behind HTTP: how pipeline files name them and the credentials for them, and signed requests."""
