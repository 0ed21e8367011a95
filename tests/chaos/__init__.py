"""Topologies under faults: one workload, one list of faults, one checker; what differs between suites is settings.

``workload`` has the sources and states of a topology, ``checker`` compares all that is stored with the source,
``deployment`` runs coordinators, ZooKeeper and outside stores as real processes, ``faults`` lists what is done to them,
``suites`` has the settings of each suite, and ``python -m tests.chaos SUITE`` runs one with faults drawn from a seed.
``cases`` and ``campaign`` have each fault point in turn, in one process.
"""
