"""Topologies of spouts and bolts: one message at a time."""
