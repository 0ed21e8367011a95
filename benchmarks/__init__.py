"""How fast it is, against peers and limits measured in the same run (`make bench`).

    python -m benchmarks [NAME...] [--json FILE] [--quick]

Every ratio compares figures of one run, taken in interleaved rounds on one
Spark session: the peers have our file system, codec, shuffle partitions and
cores. A figure alone says little about another machine; a ratio says more.
"""
