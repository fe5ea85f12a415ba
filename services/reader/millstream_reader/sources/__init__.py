"""The kinds of source, a folder each. `opening.open_source` opens the one that a spec names."""
