"""The kinds of vertex, a module each. Importing one imports nothing of its lanes."""
