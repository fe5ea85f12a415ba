"""The command line. Each command is a module that is imported when it is used, so that starting stays quick."""
