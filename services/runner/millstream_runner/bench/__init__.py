"""What `millstream bench` measures: pipelines as users would run them, beside the limit of the machine."""
