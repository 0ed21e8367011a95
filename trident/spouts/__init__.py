"""Spouts: the contracts, the executors that drive them, and the sources of one file."""
