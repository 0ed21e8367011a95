"""The calls that users chain: topologies, streams, grouped streams."""
