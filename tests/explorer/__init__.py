"""Exhaustive exploration of production decision functions in models of their environment.

``search`` walks a state graph; ``durable`` and ``environment`` model what
surrounds the coordinator (ZooKeeper, tables, Spark, crashes, a second
coordinator); ``compaction`` what surrounds the log-structured state. The models share
no code with what they check: they import the events and commands, never a rule.
"""
