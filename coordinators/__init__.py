"""Transactions: the pure coordinator, its driver, ZooKeeper state and leadership. Knows neither Spark nor Delta."""
