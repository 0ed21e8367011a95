"""Kept transactions of a topology: run again, compared, taken back."""
