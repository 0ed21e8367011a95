"""DeltaMapState: a plain table, a log of changes, and their compaction."""
