"""Where records come from: a folder for each kind of source; `opening.open_source` opens the one that a spec names."""
