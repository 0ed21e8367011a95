"""States over a key-value map of the user's choice."""
