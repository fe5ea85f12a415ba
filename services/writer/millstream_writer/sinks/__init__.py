"""The kinds of sink, a folder each. `opening.open_sink` opens the one that a spec names."""
