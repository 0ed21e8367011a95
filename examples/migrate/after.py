"""Counts the orders of each item. BROKERS and LAKE say where."""

import os

from trident import Count, DeltaMapState, KafkaSpout, TridentConfig, TridentTopology
from trident import functions as F

BROKERS, LAKE = os.environ["BROKERS"], os.environ["LAKE"]

config = TridentConfig(warehouse=LAKE)
topology = TridentTopology("orders")
kafka = topology.new_stream("orders", KafkaSpout(BROKERS, "orders"))
orders = kafka.select(F.col("value").cast("string").alias("item"))
orders.group_by("item").persistent_aggregate(DeltaMapState("counts", adopt=True), Count(), "count")
