"""Sources and sinks, a folder for each technology. What several of them need is in `shared`."""
