"""States outside of the warehouse: rows that are published to a store of the user's behind the Delta tables."""
