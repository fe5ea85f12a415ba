"""The caller's side of user-defined functions: processes, protocols, and the data that is exchanged."""
