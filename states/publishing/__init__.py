"""The committer, users' states in their turn, dead letters."""
