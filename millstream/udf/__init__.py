"""User-defined functions from the caller's side: processes, protocols, and what crosses between."""
