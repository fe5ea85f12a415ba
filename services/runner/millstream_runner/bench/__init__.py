"""`millstream bench`: measures pipelines as users would run them, next to the limit of the machine."""
