"""Warehouses that older versions wrote, with what ZooKeeper kept of them: the present code goes on with each.

``make.py`` makes one, ``job.py`` is the program that wrote them and goes on with them.
"""
