"""Values in encodings of others, and the registries that have their schemas."""
