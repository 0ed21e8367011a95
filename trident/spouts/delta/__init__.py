"""DeltaSpout: the rows that are added to a Delta table."""
