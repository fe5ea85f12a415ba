"""External tables of Delta Lake: how they are reached, and what their errors mean."""
