"""What of a pipeline runs, what is stored where, and what a change requires. It knows no broker and no disk."""
