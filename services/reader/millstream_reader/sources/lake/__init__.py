"""What sources of tables have in common: a lane that reads rows file by file."""
