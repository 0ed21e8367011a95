"""Bugs on purpose: patches, and what must catch each (see test_planted_bugs.py)."""
