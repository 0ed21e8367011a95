"""Shared by repair, rollback and fork: the stored facts of a topology, and the steps that change it."""
