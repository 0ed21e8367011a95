"""Tests of states outside of the warehouse."""
