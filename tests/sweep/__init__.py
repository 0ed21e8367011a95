"""Every fault point, with every outcome, at every time, over every kind of topology; see test_sweep.py."""
