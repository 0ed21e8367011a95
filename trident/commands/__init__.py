"""The commands behind the command line."""
