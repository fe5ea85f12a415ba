"""Tables of Delta Lake as something outside: how they are reached, and what their errors mean."""
