"""Tables of Delta Lake: source and sink."""
