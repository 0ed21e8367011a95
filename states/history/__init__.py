"""The past of a batch group: kept manifests, and the versions of its tables as of a transaction."""
