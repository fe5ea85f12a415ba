"""Files and objects: source and sink."""
