"""Storage of a pipeline's records between its steps: a folder for each technology, and a registry that finds them."""
