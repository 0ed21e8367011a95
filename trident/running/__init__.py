"""A running topology: its query, its batches, its status, its ZooKeeper."""
