"""Values in other encodings than JSON, and the registries that have their schemas."""
