"""The kinds of sink, one module each. `opening.open_sink` opens the one a spec names."""
