"""Every spout kind with every state kind under every fault, against a naive fold (see test_matrix.py)."""
