"""States: what a batch is committed to, and how: staging, manifests, Delta tables, keyed state, snapshots."""
