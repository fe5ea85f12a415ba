"""What the process of debugpy's adapter imports before it begins."""
