"""What users chain: topologies, streams, grouped streams."""
