"""The lane of a reduce vertex: its intake, what it hands over, the results that come back, and its milestones."""
