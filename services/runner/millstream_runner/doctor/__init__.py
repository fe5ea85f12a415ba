"""Whether a machine has what Millstream, or one pipeline, needs: what `millstream doctor` finds."""
