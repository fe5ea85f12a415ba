"""`millstream repair`: finds damage in the stored data of a pipeline, and continues without what is lost."""
