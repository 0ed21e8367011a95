"""Delta tables: their log, their files, staging, manifests."""
