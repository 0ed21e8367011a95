"""Queues that give receipts, and their spouts."""
