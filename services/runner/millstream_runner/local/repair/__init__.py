"""`millstream repair`: finds damage in what a pipeline has stored, and goes on without what is lost."""
