"""The source that makes records up."""
