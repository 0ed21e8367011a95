"""States: the tables and maps that batches are committed to, from staging to snapshots."""
