"""The kinds of vertex, one module each. Importing a kind does not import the code of its lanes."""
